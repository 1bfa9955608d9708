import org.deeplearning4j.nn.conf.*;
import org.deeplearning4j.nn.conf.layers.*;
import org.deeplearning4j.nn.multilayer.MultiLayerNetwork;
import org.deeplearning4j.nn.weights.WeightInit;
import org.deeplearning4j.util.ModelSerializer;
import org.nd4j.linalg.activations.Activation;
import org.nd4j.linalg.api.buffer.DataType;
import org.nd4j.linalg.api.ndarray.INDArray;
import org.nd4j.linalg.dataset.DataSet;
import org.nd4j.linalg.dataset.api.preprocessor.*;
import org.nd4j.linalg.factory.Nd4j;
import org.nd4j.linalg.learning.config.*;
import org.nd4j.linalg.lossfunctions.LossFunctions;
import org.nd4j.linalg.schedule.*;
import java.io.*; import java.nio.file.*;
public class ModelGoldenM21 {
  static void array(String name, INDArray a) throws Exception {
    DataOutputStream d = new DataOutputStream(new FileOutputStream("array_" + name + "_m21.bin")); Nd4j.write(a, d); d.close();
  }
  static void save(String name, MultiLayerConfiguration conf, int nIn, int nOut) throws Exception {
    MultiLayerNetwork net = new MultiLayerNetwork(conf); net.init();
    INDArray x = Nd4j.linspace(-1, 1, 5*nIn).castTo(conf.getConf(0).getDataType()).reshape(5, nIn);
    INDArray y = Nd4j.zeros(5, nOut); for (int i=0;i<5;i++) y.putScalar(i, i%nOut, 1.0);
    NormalizerStandardize n = new NormalizerStandardize(); n.fit(new DataSet(x.dup(), y));
    for (int i=0;i<3;i++) net.fit(new DataSet(x,y));
    ModelSerializer.writeModel(net, new File(name + ".zip"), true);
    org.nd4j.linalg.dataset.api.preprocessor.serializer.NormalizerSerializer ns = org.nd4j.linalg.dataset.api.preprocessor.serializer.NormalizerSerializer.getDefault();
    NormalizerMinMaxScaler mm = new NormalizerMinMaxScaler(-1, 2); mm.fit(new DataSet(x.dup(), y));
    if (name.equals("mlp_m21")) { ns.write(n, new File("normalizer_standardize_m21.bin")); ns.write(mm, new File("normalizer_min_max_m21.bin")); ns.write(new ImagePreProcessingScaler(0, 1), new File("normalizer_image_m21.bin")); }
    INDArray o = net.output(x).dup('c');
    StringBuilder s = new StringBuilder("{\"score\":" + net.score(new DataSet(x,y)) + ",\"output\":[");
    for (int i=0;i<o.length();i++) s.append(i>0?",":"").append(o.getDouble(i));
    s.append("],\"params\":[");
    INDArray p = net.params(); for (int i=0;i<p.length();i++) s.append(i>0?",":"").append(p.getDouble(i));
    s.append("],\"updater_state\":[");
    p = net.updaterState(); if (p != null) for (int i=0;i<p.length();i++) s.append(i>0?",":"").append(p.getDouble(i));
    s.append("]}");
    Files.write(Paths.get(name + ".json"), s.toString().getBytes());
  }
  public static void main(String[] a) throws Exception {
    for (DataType t : new DataType[]{DataType.DOUBLE, DataType.FLOAT, DataType.HALF, DataType.INT, DataType.LONG, DataType.SHORT, DataType.BYTE, DataType.UBYTE, DataType.BOOL, DataType.BFLOAT16})
      array(t.toString(), Nd4j.linspace(0,5,6).reshape(2,3).castTo(t));
    array("scalar", Nd4j.scalar(2.5f)); array("vector", Nd4j.createFromArray(1f,2f,3f)); array("rank3", Nd4j.linspace(1,24,24).castTo(DataType.FLOAT).reshape(2,3,4)); array("f", Nd4j.linspace(1,6,6).castTo(DataType.FLOAT).reshape(2,3).dup('f'));
    array("view", Nd4j.linspace(1,24,24).castTo(DataType.FLOAT).reshape(4,6).get(org.nd4j.linalg.indexing.NDArrayIndex.interval(1,3), org.nd4j.linalg.indexing.NDArrayIndex.interval(1,4)));
    array("empty", Nd4j.empty(DataType.FLOAT));
    save("mlp_m21", new NeuralNetConfiguration.Builder().seed(12).updater(new Adam(0.05)).l2(1e-3).weightInit(WeightInit.XAVIER).activation(Activation.TANH).list()
      .layer(0, new DenseLayer.Builder().nIn(4).nOut(6).build())
      .layer(1, new DenseLayer.Builder().nIn(6).nOut(5).activation(Activation.RELU).dropOut(0.8).updater(new Nesterovs(new StepSchedule(ScheduleType.ITERATION, 0.1, 0.5, 10), 0.8)).l1(0.01).build())
      .layer(2, new OutputLayer.Builder(LossFunctions.LossFunction.MCXENT).nIn(5).nOut(3).activation(Activation.SOFTMAX).gradientNormalization(GradientNormalization.ClipL2PerLayer).gradientNormalizationThreshold(0.5).build())
      .build(), 4, 3);
    save("ae_m21", new NeuralNetConfiguration.Builder().seed(12).dataType(DataType.DOUBLE).updater(new AMSGrad(0.05)).weightInit(new org.deeplearning4j.nn.conf.distribution.NormalDistribution(0,0.3)).list()
      .layer(0, new AutoEncoder.Builder().nIn(4).nOut(6).activation(Activation.SIGMOID).corruptionLevel(0.2).build())
      .layer(1, new OutputLayer.Builder(LossFunctions.LossFunction.MSE).nIn(6).nOut(2).activation(Activation.IDENTITY).build())
      .build(), 4, 2);
  }
}
