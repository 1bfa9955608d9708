import java.io.BufferedReader;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.BufferedInputStream;
import java.io.BufferedOutputStream;
import java.io.File;
import java.io.FileDescriptor;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Array;
import java.lang.reflect.Constructor;
import java.lang.reflect.Executable;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

import org.deeplearning4j.nn.api.Model;
import org.deeplearning4j.nn.conf.ComputationGraphConfiguration;
import org.deeplearning4j.nn.conf.MultiLayerConfiguration;
import org.deeplearning4j.nn.graph.ComputationGraph;
import org.deeplearning4j.nn.multilayer.MultiLayerNetwork;
import org.deeplearning4j.util.ModelSerializer;
import org.nd4j.linalg.api.ndarray.INDArray;
import org.nd4j.linalg.dataset.DataSet;
import org.nd4j.linalg.dataset.MultiDataSet;
import org.nd4j.linalg.dataset.api.preprocessor.DataNormalization;
import org.nd4j.linalg.factory.Nd4j;
import org.nd4j.shade.jackson.databind.ObjectMapper;

/**
 * The real Deeplearning4j (0.9.1 or 1.0.0-M2.1, whichever is on the class path), asked from Python.
 *
 * A request is a line of JSON on stdin, its answer a line of JSON on stdout; arrays are files (rank, sizes, float64, all
 * big-endian) in the request's folder. {@code load}: a model file is read, asked for its outputs, saved again, trained
 * on by one step. {@code build}: the same with a network that Deeplearning4j's own builders make from a description.
 */
public final class RealDl4j {
    private static final ObjectMapper JSON = new ObjectMapper();

    private RealDl4j() {}

    public static void main(String[] args) throws Exception {
        PrintStream answers = new PrintStream(new FileOutputStream(FileDescriptor.out), true, "UTF-8");
        System.setOut(System.err); // whatever the library prints is no answer
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            answers.println(JSON.writeValueAsString(answer(line)));
        }
    }

    private static Map<String, Object> answer(String line) throws IOException {
        Map<String, Object> result = new LinkedHashMap<>();
        try {
            @SuppressWarnings("unchecked")
            Map<String, Object> request = JSON.readValue(line, Map.class);
            serve(request, result);
        } catch (Throwable problem) {
            Throwable cause = problem;
            while (cause instanceof InvocationTargetException && cause.getCause() != null) {
                cause = cause.getCause();
            }
            StackTraceElement[] trace = cause.getStackTrace();
            result.put("error", cause + (trace.length > 0 ? " at " + trace[0] : ""));
        }
        return result;
    }

    private static void serve(Map<String, Object> request, Map<String, Object> result) throws Exception {
        File folder = new File((String) request.get("folder"));
        if (request.containsKey("normalizer")) {
            normalize(request, folder);
            return;
        }
        Model model = request.containsKey("model")
                ? load(new File((String) request.get("model")))
                : built(Values.of(request.get("network"), Object.class), request, folder);
        if (request.containsKey("save")) {
            save(model, request, folder);
        }
        result.put("configuration", configuration(model));
        write(new File(folder, "params"), model.params());
        INDArray state = state(model);
        if (state != null) {
            write(new File(folder, "state"), state);
        }
        List<INDArray> outputs = outputs(model, folder);
        for (int i = 0; i < outputs.size(); i++) {
            write(new File(folder, "y" + i), outputs.get(i));
        }
        result.put("outputs", outputs.size());
        if (Boolean.TRUE.equals(request.get("step"))) {
            fit(model, folder);
            result.put("score", model.score());
            write(new File(folder, "after"), model.params());
        }
    }

    // -- networks ---------------------------------------------------------------------------------------------------

    private static Model load(File file) throws Exception {
        return isGraph(file) ? ModelSerializer.restoreComputationGraph(file, true)
                : ModelSerializer.restoreMultiLayerNetwork(file, true);
    }

    private static boolean isGraph(File file) throws IOException {
        try (java.util.zip.ZipFile zip = new java.util.zip.ZipFile(file)) {
            return JSON.readTree(zip.getInputStream(zip.getEntry("configuration.json"))).has("vertices");
        }
    }

    private static Model built(Object conf, Map<String, Object> request, File folder) throws Exception {
        Model model;
        if (conf instanceof MultiLayerConfiguration) {
            MultiLayerNetwork network = new MultiLayerNetwork((MultiLayerConfiguration) conf);
            network.init();
            model = network;
        } else {
            ComputationGraph graph = new ComputationGraph((ComputationGraphConfiguration) conf);
            graph.init();
            model = graph;
        }
        int steps = request.containsKey("steps") ? ((Number) request.get("steps")).intValue() : 0;
        for (int i = 0; i < steps; i++) {
            fit(model, folder);
        }
        return model;
    }

    private static void save(Model model, Map<String, Object> request, File folder) throws Exception {
        File file = new File((String) request.get("save"));
        boolean updater = !Boolean.FALSE.equals(request.get("updater"));
        ModelSerializer.writeModel(model, file, updater);
        if (request.containsKey("with_normalizer")) {
            ModelSerializer.addNormalizerToModel(file, fitted(request.get("with_normalizer"), folder));
        }
    }

    private static String configuration(Model model) {
        return model instanceof MultiLayerNetwork
                ? ((MultiLayerNetwork) model).getLayerWiseConfigurations().toJson()
                : ((ComputationGraph) model).getConfiguration().toJson();
    }

    private static INDArray state(Model model) {
        return model instanceof MultiLayerNetwork
                ? ((MultiLayerNetwork) model).getUpdater().getStateViewArray()
                : ((ComputationGraph) model).getUpdater().getStateViewArray();
    }

    private static List<INDArray> outputs(Model model, File folder) throws IOException {
        INDArray[] inputs = all(folder, "x");
        INDArray[] masks = all(folder, "fm");
        if (model instanceof MultiLayerNetwork) {
            MultiLayerNetwork network = (MultiLayerNetwork) model;
            INDArray mask = masks == null ? null : masks[0];
            INDArray output = mask == null ? network.output(inputs[0], false)
                    : network.output(inputs[0], false, mask, null);
            network.clearLayerMaskArrays();
            return Arrays.asList(output);
        }
        ComputationGraph graph = (ComputationGraph) model;
        if (masks != null) {
            graph.setLayerMaskArrays(masks, null);
        }
        List<INDArray> found = Arrays.asList(graph.output(false, inputs));
        graph.clearLayerMaskArrays();
        return found;
    }

    private static void fit(Model model, File folder) throws Exception {
        INDArray[] inputs = all(folder, "x");
        INDArray[] labels = all(folder, "l");
        INDArray[] featuresMasks = all(folder, "fm");
        INDArray[] labelsMasks = all(folder, "lm");
        if (model instanceof MultiLayerNetwork) {
            ((MultiLayerNetwork) model).fit(new DataSet(inputs[0], labels[0],
                    featuresMasks == null ? null : featuresMasks[0], labelsMasks == null ? null : labelsMasks[0]));
        } else {
            ((ComputationGraph) model).fit(new MultiDataSet(inputs, labels, featuresMasks, labelsMasks));
        }
    }

    // -- normalizers ------------------------------------------------------------------------------------------------

    private static DataNormalization fitted(Object described, File folder) throws Exception {
        DataNormalization normalizer = (DataNormalization) Values.of(described, DataNormalization.class);
        normalizer.fit(new DataSet(all(folder, "x")[0], all(folder, "l")[0]));
        return normalizer;
    }

    private static void normalize(Map<String, Object> request, File folder) throws Exception {
        Object described = request.get("normalizer");
        DataNormalization normalizer = described instanceof String
                ? (DataNormalization) ModelSerializer.restoreNormalizerFromFile(new File((String) described))
                : fitted(described, folder);
        DataSet data = new DataSet(all(folder, "x")[0], all(folder, "l")[0]);
        normalizer.transform(data);
        write(new File(folder, "nx"), data.getFeatures());
        write(new File(folder, "nl"), data.getLabels());
    }

    // -- arrays -----------------------------------------------------------------------------------------------------

    private static INDArray[] all(File folder, String name) throws IOException {
        List<INDArray> found = new ArrayList<>();
        for (File file = new File(folder, name + 0); file.isFile(); file = new File(folder, name + found.size())) {
            found.add(read(file));
        }
        return found.isEmpty() ? null : found.toArray(new INDArray[0]);
    }

    private static INDArray read(File file) throws IOException {
        try (DataInputStream in = new DataInputStream(new BufferedInputStream(new FileInputStream(file)))) {
            int[] shape = new int[in.readInt()];
            int length = 1;
            for (int i = 0; i < shape.length; i++) {
                shape[i] = in.readInt();
                length *= shape[i];
            }
            double[] data = new double[length];
            for (int i = 0; i < length; i++) {
                data[i] = in.readDouble();
            }
            return Nd4j.create(data, shape, 'c');
        }
    }

    private static void write(File file, INDArray array) throws IOException {
        try (DataOutputStream out = new DataOutputStream(new BufferedOutputStream(new FileOutputStream(file)))) {
            out.writeInt(array.rank());
            for (int i = 0; i < array.rank(); i++) {
                out.writeInt((int) array.size(i));
            }
            for (double value : array.dup('c').data().asDouble()) {
                out.writeDouble(value);
            }
        }
    }

    /** Values from JSON: numbers, names of enums, lists; and objects, by a class, what makes it, and calls on it. */
    private static final class Values {
        private static final String[] PACKAGES = {
            "", "org.deeplearning4j.nn.conf.", "org.deeplearning4j.nn.conf.layers.",
            "org.deeplearning4j.nn.conf.graph.", "org.deeplearning4j.nn.conf.inputs.",
            "org.deeplearning4j.nn.conf.preprocessor.", "org.deeplearning4j.nn.conf.distribution.",
            "org.deeplearning4j.nn.conf.dropout.", "org.nd4j.linalg.learning.config.", "org.nd4j.linalg.schedule.",
            "org.nd4j.linalg.activations.impl.", "org.nd4j.linalg.lossfunctions.impl.",
            "org.nd4j.linalg.dataset.api.preprocessor.",
        };

        private static Class<?> named(String name) {
            for (String start : PACKAGES) {
                try {
                    return Class.forName(start + name);
                } catch (ClassNotFoundException | LinkageError notHere) {
                    continue;
                }
            }
            throw new IllegalArgumentException("this version has no class " + name);
        }

        static Object of(Object node, Class<?> want) throws Exception {
            if (node == null) {
                return null;
            }
            if (node instanceof Map && !want.isPrimitive()) {
                return object((Map<?, ?>) node);
            }
            if (node instanceof List) {
                return listed((List<?>) node, want);
            }
            if (node instanceof Number && (want.isPrimitive() || Number.class.isAssignableFrom(want))) {
                return number((Number) node, want);
            }
            if (node instanceof String && want.isEnum()) {
                for (Object constant : want.getEnumConstants()) {
                    if (((Enum<?>) constant).name().equals(node)) {
                        return constant;
                    }
                }
                throw new IllegalArgumentException(want.getSimpleName() + " has no " + node);
            }
            if (want == boolean.class && node instanceof Boolean || want.isInstance(node)) {
                return node;
            }
            throw new IllegalArgumentException(node + " is no " + want.getName());
        }

        private static Object number(Number value, Class<?> want) {
            boolean whole = value instanceof Integer || value instanceof Long;
            if ((want == int.class || want == Integer.class) && whole) {
                return value.intValue();
            }
            if ((want == long.class || want == Long.class) && whole) {
                return value.longValue();
            }
            if (want == float.class) {
                return value.floatValue();
            }
            if (want == double.class || want == Double.class || want == Number.class) {
                return value.doubleValue();
            }
            throw new IllegalArgumentException(value + " is no " + want.getName());
        }

        private static Object listed(List<?> items, Class<?> want) throws Exception {
            if (want.isArray()) {
                Object array = Array.newInstance(want.getComponentType(), items.size());
                for (int i = 0; i < items.size(); i++) {
                    Array.set(array, i, of(items.get(i), want.getComponentType()));
                }
                return array;
            }
            if (INDArray.class.isAssignableFrom(want)) {
                double[] values = (double[]) listed(items, double[].class);
                return Nd4j.create(values, new int[] {1, values.length}, 'c');
            }
            if (want.isAssignableFrom(LinkedHashMap.class)) { // pairs of iteration and value
                Map<Integer, Double> map = new LinkedHashMap<>();
                for (Object pair : items) {
                    map.put(((Number) ((List<?>) pair).get(0)).intValue(), ((Number) ((List<?>) pair).get(1)).doubleValue());
                }
                return map;
            }
            throw new IllegalArgumentException("a list is no " + want.getName());
        }

        private static Object object(Map<?, ?> node) throws Exception {
            Class<?> cls = named((String) node.get("class"));
            List<?> args = node.containsKey("args") ? (List<?>) node.get("args") : new ArrayList<>();
            Object current = node.containsKey("static")
                    ? called(cls, null, (String) node.get("static"), args)
                    : made(cls, args);
            List<?> calls = node.containsKey("calls") ? (List<?>) node.get("calls") : new ArrayList<>();
            for (Object call : calls) {
                List<?> parts = (List<?>) call;
                Object next = called(current.getClass(), current, (String) parts.get(0), parts.subList(1, parts.size()));
                current = next == null ? current : next;
            }
            return current;
        }

        private static Object made(Class<?> cls, List<?> args) throws Exception {
            for (Constructor<?> constructor : sorted(cls.getConstructors())) {
                Object[] values = fitting(constructor, args);
                if (values != null) {
                    return constructor.newInstance(values);
                }
            }
            throw new IllegalArgumentException("no constructor of " + cls.getName() + " takes " + args);
        }

        private static Object called(Class<?> cls, Object target, String name, List<?> args) throws Exception {
            for (Method method : sorted(cls.getMethods())) {
                boolean ours = method.getName().equals(name) && Modifier.isStatic(method.getModifiers()) == (target == null);
                Object[] values = ours ? fitting(method, args) : null;
                if (values != null) {
                    method.setAccessible(true);
                    return method.invoke(target, values);
                }
            }
            throw new IllegalArgumentException("no method " + name + " of " + cls.getName() + " takes " + args);
        }

        /** What takes whole numbers comes before what takes any, and both before lists of arguments. */
        private static <T extends Executable> List<T> sorted(T[] found) {
            List<T> list = new ArrayList<>(Arrays.asList(found));
            list.sort(Comparator.comparing((T each) -> each.isVarArgs())
                    .thenComparing(each -> -String.join(",", names(each)).split("int|enum", -1).length)
                    .thenComparing(Executable::toString));
            return list;
        }

        private static List<String> names(Executable each) {
            List<String> found = new ArrayList<>();
            for (Class<?> type : each.getParameterTypes()) {
                found.add(type.isEnum() ? "enum" : type.getSimpleName());
            }
            return found;
        }

        private static Object[] fitting(Executable each, List<?> args) throws Exception {
            Class<?>[] types = each.getParameterTypes();
            try {
                if (types.length == args.size()) {
                    Object[] values = new Object[types.length];
                    for (int i = 0; i < types.length; i++) {
                        values[i] = of(args.get(i), types[i]);
                        if (values[i] != null && !types[i].isPrimitive() && !types[i].isInstance(values[i])) {
                            return null;
                        }
                    }
                    return values;
                }
            } catch (IllegalArgumentException other) {
                if (!each.isVarArgs()) {
                    return null;
                }
            }
            if (!each.isVarArgs() || args.size() < types.length - 1) {
                return null;
            }
            try {
                Object[] values = new Object[types.length];
                for (int i = 0; i < types.length - 1; i++) {
                    values[i] = of(args.get(i), types[i]);
                }
                values[types.length - 1] = of(args.subList(types.length - 1, args.size()), types[types.length - 1]);
                return values;
            } catch (IllegalArgumentException other) {
                return null;
            }
        }
    }
}
