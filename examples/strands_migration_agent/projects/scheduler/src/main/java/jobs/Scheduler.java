package jobs;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;

/** Gives each job its turns, one after the other. */
public class Scheduler {
    private final Deque<Job> waiting = new ArrayDeque<Job>();
    private final List<record> done = new ArrayList<record>();

    public void add(String name, int turns) {
        waiting.add(new Job(name, turns));
    }

    public List<record> run() {
        while (!waiting.isEmpty()) {
            Job job = waiting.remove();
            job.turn++;
            done.add(new record(job.name, job.turn));
            if (job.turn < job.turns) {
                yield(job);
            }
        }
        return done;
    }

    private void yield(Job job) {
        waiting.addLast(job);
    }

    private static class Job {
        final String name;
        final int turns;
        int turn;

        Job(String name, int turns) {
            this.name = name;
            this.turns = turns;
        }
    }
}
