package shop;

public class StockTest {
    public void testAdding() {
        Stock stock = new Stock();
        stock.add("pear", 2);
        stock.add("pear", 3);
        check(stock.count("pear") == 5);
        check(stock.count("plum") == 0);
    }

    public void testTotal() {
        Stock stock = new Stock();
        stock.add("pear", 2);
        stock.add("plum", 7);
        check(stock.total() == 9);
    }

    private static void check(boolean holds) {
        if (!holds) {
            throw new AssertionError();
        }
    }
}
