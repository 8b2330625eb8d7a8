import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;

/** Runs the public test… methods of the named classes, and says at the end how many ran and how many failed. */
public final class RunTests {
    public static void main(String[] names) throws Exception {
        String word = new BufferedReader(new InputStreamReader(System.in)).readLine();
        int run = 0;
        int failed = 0;
        for (String name : names) {
            Class<?> type = Class.forName(name);
            for (Method method : type.getMethods()) {
                if (!method.getName().startsWith("test") || method.getParameterCount() > 0
                        || method.getReturnType() != void.class || Modifier.isStatic(method.getModifiers())) {
                    continue;
                }
                run++;
                try {
                    method.invoke(type.getDeclaredConstructor().newInstance());
                } catch (InvocationTargetException error) {
                    failed++;
                    System.out.println(name + "." + method.getName() + ": " + error.getCause());
                }
            }
        }
        System.out.println();
        System.out.println(word + " " + run + " " + failed);
        System.exit(0);
    }
}
