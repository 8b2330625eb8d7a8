package jobs;

public class SchedulerTest {
    public void testTurnsAreTaken() {
        Scheduler scheduler = new Scheduler();
        scheduler.add("a", 2);
        scheduler.add("b", 1);
        scheduler.add("c", 3);
        check("[a#1, b#1, c#1, a#2, c#2, c#3]".equals(scheduler.run().toString()));
    }

    public void testNothingToDo() {
        check(new Scheduler().run().isEmpty());
    }

    private static void check(boolean holds) {
        if (!holds) {
            throw new AssertionError();
        }
    }
}
