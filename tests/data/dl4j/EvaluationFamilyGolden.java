import org.nd4j.evaluation.classification.*;
import org.nd4j.evaluation.curves.*;
import org.nd4j.evaluation.regression.RegressionEvaluation;
import org.nd4j.linalg.factory.Nd4j;
import org.nd4j.linalg.api.ndarray.INDArray;
import java.util.*; import java.nio.file.*;
public class EvaluationFamilyGolden {
  static StringBuilder json = new StringBuilder("{");
  static void put(String k, Object v) { if (json.length() > 1) json.append(",\n"); json.append("\"" + k + "\": " + v); }
  static void text(String k, String v) { put(k, "\"" + v.replace("\\", "\\\\").replace("\"", "\\\"").replace("\t", "\\t").replace("\n", "\\n") + "\""); }
  static String list(double[] v) { return Arrays.toString(v).replace("NaN", "null"); }
  static INDArray labels(int m, int n) { INDArray a = Nd4j.zeros(m, n); for (int i=0;i<m;i++) for (int j=0;j<n;j++) a.putScalar(i,j, (i*3+j*5+i*j+i*i)%7<3?1:0); return a; }
  // every value of a column differs from the others for m up to 101
  static INDArray output(int m, int n) { INDArray a = Nd4j.zeros(m, n); for (int i=0;i<m;i++) for (int j=0;j<n;j++) a.putScalar(i,j, ((i*37+j*13)%101)/101.0); return a; }
  static INDArray classes(int m, int n) { INDArray a = Nd4j.zeros(m, n); for (int i=0;i<m;i++) a.putScalar(i,(i*i+i*3)/2%n,1); return a; }
  static INDArray mask(int m, int n) { INDArray a = Nd4j.zeros(m, n); for (int i=0;i<m;i++) for (int j=0;j<n;j++) a.putScalar(i,j,(i+j)%4==0?0:1); return a; }
  static INDArray targets(int m, int n) { INDArray a = Nd4j.zeros(m, n); for (int i=0;i<m;i++) for (int j=0;j<n;j++) a.putScalar(i,j,((i*5+j*2)%13-6)*0.25); return a; }
  static INDArray guesses(int m, int n) { INDArray a = targets(m, n); for (int i=0;i<m;i++) for (int j=0;j<n;j++) a.putScalar(i,j,a.getDouble(i,j)+((i*3+j)%7-3)*0.125); return a; }
  public static void main(String[] x) throws Exception {
    EvaluationBinary b = new EvaluationBinary(); b.eval(labels(60,3), output(60,3)); text("binary_stats", b.stats());
    b = new EvaluationBinary(3, 0); b.setLabelNames(Arrays.asList("cat","a rather long name","dog")); b.eval(labels(60,3), output(60,3), mask(60,3)); text("binary_roc_stats", b.stats());
    put("binary_mcc", list(new double[]{b.matthewsCorrelation(0),b.matthewsCorrelation(1),b.matthewsCorrelation(2)}));
    put("binary_g", list(new double[]{b.gMeasure(0),b.gMeasure(1),b.gMeasure(2)}));
    put("binary_fpr", list(new double[]{b.falsePositiveRate(0),b.falsePositiveRate(1),b.falsePositiveRate(2)}));
    put("binary_fnr", list(new double[]{b.falseNegativeRate(0),b.falseNegativeRate(1),b.falseNegativeRate(2)}));
    b = new EvaluationBinary(Nd4j.create(new float[]{0.25f,0.5f,0.75f}).reshape(1,3)); b.eval(labels(60,3), output(60,3)); text("binary_threshold_stats", b.stats());
    RegressionEvaluation r = new RegressionEvaluation(); r.eval(targets(40,3), guesses(40,3)); text("regression_stats", r.stats());
    r = new RegressionEvaluation("height","w","depth"); r.eval(targets(40,3), guesses(40,3), mask(40,3)); r.eval(targets(15,3), guesses(15,3)); text("regression_masked_stats", r.stats());
    put("regression", list(new double[]{r.averageMeanSquaredError(), r.averageMeanAbsoluteError(), r.averagerootMeanSquaredError(), r.averagerelativeSquaredError(), r.averagePearsonCorrelation(), r.averageRSquared()}));
    for (int steps : new int[]{0, 10, 32}) {
      ROC c = new ROC(steps); c.eval(labels(90,1), output(90,1)); String k = "roc" + steps;
      text(k + "_stats", c.stats()); put(k + "_auc", c.calculateAUC()); put(k + "_aucpr", c.calculateAUCPR());
      RocCurve rc = c.getRocCurve(); put(k + "_curve", "[" + list(rc.getThreshold()) + "," + list(rc.getFpr()) + "," + list(rc.getTpr()) + "]");
      PrecisionRecallCurve pc = c.getPrecisionRecallCurve(); put(k + "_pr", "[" + list(pc.getThreshold()) + "," + list(pc.getPrecision()) + "," + list(pc.getRecall()) + "]");
      PrecisionRecallCurve.Point p = pc.getPointAtPrecision(0.5); put(k + "_at_precision", list(new double[]{p.getThreshold(), p.getPrecision(), p.getRecall()}));
      p = pc.getPointAtRecall(0.5); put(k + "_at_recall", list(new double[]{p.getThreshold(), p.getPrecision(), p.getRecall()}));
      p = pc.getPointAtThreshold(0.4); put(k + "_at_threshold", list(new double[]{p.getThreshold(), p.getPrecision(), p.getRecall()}));
      PrecisionRecallCurve.Confusion f = pc.getConfusionMatrixAtThreshold(0.4); put(k + "_confusion", "[" + f.getTpCount() + "," + f.getFpCount() + "," + f.getFnCount() + "," + f.getTnCount() + "]");
      ROCBinary rb = new ROCBinary(steps); rb.eval(labels(90,2), output(90,2)); text("roc_binary" + steps + "_stats", rb.stats());
      ROCMultiClass rm = new ROCMultiClass(steps); rm.eval(classes(90,4), output(90,4)); text("roc_multi" + steps + "_stats", rm.stats());
      put("roc_multi" + steps + "_average", list(new double[]{rm.calculateAverageAUC(), rm.calculateAverageAUCPR()}));
    }
    EvaluationCalibration e = new EvaluationCalibration(10, 20); e.eval(classes(90,3), output(90,3)); text("calibration_stats", e.stats());
    for (int i=0;i<3;i++) { ReliabilityDiagram d = e.getReliabilityDiagram(i); put("calibration_diagram" + i, "[" + list(d.getMeanPredictedValueX()) + "," + list(d.getFractionPositivesY()) + "]");
      put("calibration_residual" + i, Arrays.toString(e.getResidualPlot(i).getBinCounts())); put("calibration_probability" + i, Arrays.toString(e.getProbabilityHistogram(i).getBinCounts())); }
    put("calibration_residual", Arrays.toString(e.getResidualPlotAllClasses().getBinCounts())); put("calibration_probability", Arrays.toString(e.getProbabilityHistogramAllClasses().getBinCounts()));
    put("calibration_labels", Arrays.toString(e.getLabelCountsEachClass())); put("calibration_predictions", Arrays.toString(e.getPredictionCountsEachClass()));
    Files.write(Paths.get("evaluation_family.json"), json.append("\n}\n").toString().getBytes("UTF-8"));
  }
}
