package shop;

public class LabelTest {
    public void testEncoding() {
        check("cGVhcjo1".equals(new Label("pear", 5).encode()));
    }

    public void testDecoding() {
        check("5 x pear".equals(Label.decode("cGVhcjo1").toString()));
    }

    private static void check(boolean holds) {
        if (!holds) {
            throw new AssertionError();
        }
    }
}
