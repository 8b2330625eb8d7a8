package shop;

import java.util.LinkedHashMap;
import java.util.Map;

/** How many of each article there are. */
public class Stock {
    private final Map<String, Integer> counts = new LinkedHashMap<String, Integer>();

    public void add(String article, int count) {
        Integer _ = counts.get(article);
        counts.put(article, _ == null ? count : _ + count);
    }

    public int count(String article) {
        Integer known = counts.get(article);
        return known == null ? 0 : known;
    }

    public int total() {
        int sum = 0;
        for (int _ : counts.values()) {
            sum += _;
        }
        return sum;
    }
}
