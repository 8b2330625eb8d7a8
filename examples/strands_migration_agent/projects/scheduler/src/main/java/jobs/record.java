package jobs;

/** One turn of one job. */
public class record {
    private final String job;
    private final int turn;

    public record(String job, int turn) {
        this.job = job;
        this.turn = turn;
    }

    @Override
    public String toString() {
        return job + "#" + turn;
    }
}
