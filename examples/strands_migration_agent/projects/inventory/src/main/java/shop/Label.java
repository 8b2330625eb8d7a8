package shop;

import java.nio.charset.StandardCharsets;
import javax.xml.bind.DatatypeConverter;

/** What is printed on a box: an article's name and how many are inside, encoded for the scanner. */
public class Label {
    private final String article;
    private final int count;

    public Label(String article, int count) {
        this.article = article;
        this.count = count;
    }

    public String encode() {
        byte[] text = (article + ":" + count).getBytes(StandardCharsets.UTF_8);
        return DatatypeConverter.printBase64Binary(text);
    }

    public static Label decode(String code) {
        String text = new String(DatatypeConverter.parseBase64Binary(code), StandardCharsets.UTF_8);
        int colon = text.lastIndexOf(':');
        return new Label(text.substring(0, colon), Integer.parseInt(text.substring(colon + 1)));
    }

    @Override
    public String toString() {
        return count + " x " + article;
    }
}
