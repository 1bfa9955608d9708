import org.deeplearning4j.nn.graph.ComputationGraph;
import org.deeplearning4j.util.ModelSerializer;
import org.nd4j.linalg.factory.Nd4j;
import org.nd4j.linalg.api.ndarray.INDArray;
import org.nd4j.linalg.dataset.MultiDataSet;
import java.io.File;
/** Loads a graph that dl4jlegacy wrote (golden_conf or every_vertex of tests/nn/graph/test_computation_graph.py) and prints what it answers. */
public class CheckGraph {
  static INDArray grid(double shift, int... shape) { int[] s = shape; INDArray a = Nd4j.zeros(s); INDArray f = a.reshape('c', 1, (int) a.length()); for (int i = 0; i < f.length(); i++) f.putScalar(i, Math.sin(i * 0.7 + shift)); return f.reshape('c', s); }
  public static void main(String[] a) throws Exception {
    ComputationGraph net = ModelSerializer.restoreComputationGraph(new File(a[0]), true);
    INDArray[] x = a[1].equals("golden") ? new INDArray[]{grid(0, 6, 4), grid(1, 6, 5)} : new INDArray[]{grid(0, 3, 6, 4), grid(1, 3, 36)};
    for (INDArray o : net.output(x)) { INDArray f = o.dup('c').reshape('c', 1, (int) o.length()); StringBuilder s = new StringBuilder(); for (int i = 0; i < f.length(); i++) s.append(f.getDouble(i)).append(" "); System.out.println(s); }
  }
}
