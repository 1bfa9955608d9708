import java.io.DataInputStream;
import java.io.File;
import java.lang.reflect.Array;
import java.lang.reflect.Constructor;
import java.lang.reflect.Method;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.TreeMap;
import java.util.zip.ZipEntry;
import java.util.zip.ZipFile;

import org.nd4j.linalg.api.ndarray.INDArray;
import org.nd4j.linalg.factory.Nd4j;
import org.nd4j.linalg.learning.GradientUpdater;
import org.nd4j.linalg.learning.config.*;

/**
 * Records the steps that ND4J's updaters (0.9.1 or 1.0.0-M2.1) take for given gradients. Arguments: the JSON file to
 * write; then files of models, from whose updater state the updater that their names have goes on.
 */
public class UpdaterSteps {
  static final int N = 6, STEPS = 10;
  static final StringBuilder OUT = new StringBuilder();

  /** Gradients of very different sizes, with signs that change. */
  static INDArray gradient(int t, int n) {
    float[] g = new float[n];
    for (int i = 0; i < n; i++) g[i] = (float) (Math.pow(10, -(i % N)) * Math.cos(1.7 * t + i));
    return Nd4j.create(g, new int[] {1, n}, 'c');
  }

  static String text(INDArray array) {
    StringBuilder s = new StringBuilder("[");
    for (int i = 0; array != null && i < array.length(); i++) s.append(i > 0 ? "," : "").append((float) array.getDouble(i));
    return s.append("]").toString();
  }

  /** An updater with the rate 0.1, of a class that is made in another way in each version, or is not in both. */
  static IUpdater rated(String name) throws ReflectiveOperationException {
    Class<?> type = Class.forName("org.nd4j.linalg.learning.config." + name);
    try {
      return (IUpdater) type.getConstructor(double.class).newInstance(0.1);
    } catch (NoSuchMethodException in091) {
      return (IUpdater) call(call(type.getMethod("builder").invoke(null), "learningRate", 0.1), "build");
    }
  }

  static Map<String, IUpdater> updaters() throws ReflectiveOperationException {
    Map<String, IUpdater> all = new LinkedHashMap<>();
    all.put("Sgd", Sgd.builder().learningRate(0.1).build());
    all.put("Nesterovs", Nesterovs.builder().learningRate(0.1).momentum(0.8).build());
    all.put("AdaGrad", AdaGrad.builder().learningRate(0.1).build());
    all.put("AdaGrad epsilon", AdaGrad.builder().learningRate(0.1).epsilon(0.01).build());
    all.put("RmsProp", RmsProp.builder().learningRate(0.1).build());
    all.put("RmsProp epsilon", RmsProp.builder().learningRate(0.1).rmsDecay(0.9).epsilon(0.01).build());
    all.put("Adam", Adam.builder().learningRate(0.1).build());
    all.put("AdaMax", rated("AdaMax"));
    all.put("Nadam", Nadam.builder().learningRate(0.1).build());
    all.put("AdaDelta", AdaDelta.builder().build());
    all.put("NoOp", new NoOp());
    try {
      all.put("AMSGrad", rated("AMSGrad"));
    } catch (ReflectiveOperationException notIn091) {
      System.err.println(notIn091);
    }
    return all;
  }

  static Object call(Object target, String name, Object... args) throws ReflectiveOperationException {
    for (Method m : target.getClass().getMethods()) {
      if (!m.getName().equals(name) || m.getParameterTypes().length != args.length) continue;
      m.setAccessible(true);
      return m.invoke(target, args);
    }
    throw new NoSuchMethodException(name);
  }

  /** The schedules of 1.0.0 that are equal here; of 0.9.1, whose schedules are the network's, none. */
  static Map<String, Object> schedules() throws ReflectiveOperationException {
    Map<String, Object> all = new LinkedHashMap<>();
    all.put("", null);
    Class<?> type;
    try {
      type = Class.forName("org.nd4j.linalg.schedule.ScheduleType");
    } catch (ClassNotFoundException old) {
      return all;
    }
    Object by = type.getEnumConstants()[0];
    TreeMap<Integer, Double> map = new TreeMap<>();
    map.put(0, 0.1);
    map.put(3, 0.05);
    map.put(6, 0.2);
    all.put("ExponentialSchedule", made("ExponentialSchedule", by, 0.1, 0.9));
    all.put("InverseSchedule", made("InverseSchedule", by, 0.1, 0.5, 2.0));
    all.put("StepSchedule", made("StepSchedule", by, 0.1, 0.5, 3.0));
    all.put("SigmoidSchedule", made("SigmoidSchedule", by, 0.1, -0.5, 4));
    all.put("MapSchedule", made("MapSchedule", by, map));
    return all;
  }

  static Object made(String name, Object... args) throws ReflectiveOperationException {
    for (Constructor<?> c : Class.forName("org.nd4j.linalg.schedule." + name).getConstructors())
      if (c.getParameterTypes().length == args.length) return c.newInstance(args);
    throw new NoSuchMethodException(name);
  }

  /** Record one updater, from a new state or a given one; the steps, the state before them and after them. */
  static void record(String name, IUpdater conf, INDArray given, int n) throws Exception {
    long rows = ((Number) call(conf, "stateSize", wide(conf, n))).longValue() / n;
    INDArray state = given != null ? given : rows == 0 ? null : Nd4j.create(new int[] {1, (int) rows * n}).assign(7.0);
    OUT.append(OUT.length() > 1 ? ",\n" : "\n").append("\"").append(name).append("\":{");
    GradientUpdater<?> updater = (GradientUpdater<?>) conf.getClass()
        .getMethod("instantiate", INDArray.class, boolean.class).invoke(conf, state, given == null);
    OUT.append("\"begin\":").append(text(state)).append(",\"steps\":[");
    for (int t = 0; t < STEPS; t++) {
      INDArray g = gradient(t, n);
      try {
        call(updater, "applyUpdater", g, t, 0);
      } catch (NoSuchMethodException old) {
        call(updater, "applyUpdater", g, t);
      }
      OUT.append(t > 0 ? "," : "").append(text(g));
    }
    OUT.append("],\"end\":").append(text(state)).append("}");
  }

  /** The number as the type that this version's stateSize takes. */
  static Object wide(IUpdater conf, int n) {
    for (Method m : conf.getClass().getMethods())
      if (m.getName().equals("stateSize")) return m.getParameterTypes()[0] == int.class ? (Object) n : (Object) (long) n;
    throw new IllegalArgumentException();
  }

  public static void main(String[] args) throws Exception {
    OUT.append("{");
    for (Map.Entry<String, Object> schedule : schedules().entrySet()) {
      for (Map.Entry<String, IUpdater> each : updaters().entrySet()) {
        if (schedule.getValue() != null) {
          if (each.getKey().equals("AdaDelta") || each.getKey().equals("NoOp")) continue;
          call(each.getValue(), "setLearningRateSchedule", schedule.getValue());
        }
        record((each.getKey() + " " + schedule.getKey()).trim(), each.getValue(), null, N);
      }
    }
    for (int i = 1; i < args.length; i++) {
      try (ZipFile zip = new ZipFile(args[i])) {
        ZipEntry entry = zip.getEntry("updaterState.bin");
        INDArray state = Nd4j.read(new DataInputStream(zip.getInputStream(entry)));
        String file = new File(args[i]).getName();
        String kind = file.startsWith("dbn") ? "AdaGrad" : null;
        for (String name : updaters().keySet()) if (file.contains("_" + name.toLowerCase() + "_")) kind = name;
        IUpdater conf = updaters().get(kind);
        int rows = ((Number) call(conf, "stateSize", wide(conf, 1))).intValue();
        record(file, conf, state.dup(), (int) state.length() / rows);
      }
    }
    OUT.append("\n}\n");
    Files.write(Paths.get(args[0]), OUT.toString().getBytes());
  }
}
