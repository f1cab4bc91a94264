package job

import (
	"slices"
	"strings"
	"testing"

	"github.com/recast-sh/recast/internal/sim/must"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/recast-sh/recast/api/v1alpha1"
	"github.com/recast-sh/recast/internal/operator/attempt"
)

func cluster() *v1alpha1.TalosCluster {
	return &v1alpha1.TalosCluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: "clusters", Name: strings.Repeat("c", 40)},
		Spec: v1alpha1.TalosClusterSpec{
			Source: v1alpha1.Source{OCI: &v1alpha1.OCISource{Reference: "ghcr.io/acme/clusters", SecretName: "pull"}},
			Secrets: v1alpha1.Secrets{
				ProxmoxToken: v1alpha1.SecretKey{Name: "a"}, Talosconfig: v1alpha1.SecretKey{Name: "a", Key: "config"}, Kubeconfig: v1alpha1.SecretKey{Name: "a"},
				AgeKey: &v1alpha1.SecretKey{Name: "age"}, EnvFrom: "hooks",
				Files: []v1alpha1.SecretFile{{SecretKey: v1alpha1.SecretKey{Name: "machine"}, Path: "machine/cp1.yaml"}, {SecretKey: v1alpha1.SecretKey{Name: "machine", Key: "x"}, Path: "machine/wk1.yaml"}},
			},
			Lock: v1alpha1.LockUpdate,
			Job:  v1alpha1.JobSettings{BackupClaim: "backups", TrustBundle: "ca", TerminationGracePeriodSeconds: 3600},
		},
	}
}

func made(kind attempt.Kind) *batchv1.Job {
	c := cluster()
	task := Task(c, kind)
	of := c.Name
	if kind != attempt.Check {
		task.Roll = strings.Repeat("r", 50)
		of = task.Roll
	}
	task.Job = Name(of, kind, 123)
	return New(Spec{Cluster: c, Task: task, Image: "recast:v1", Plan: PlanName(task.Roll), Near: "wk2", NodeLabel: "node-role.kubernetes.io/control-plane"})
}

var kinds = []attempt.Kind{attempt.Check, attempt.Plan, attempt.Roll, attempt.Kubernetes}

func TestJobIsConfined(t *testing.T) {
	t.Parallel()
	for _, kind := range kinds {
		pod := made(kind).Spec.Template.Spec
		c := pod.Containers[0]
		if !*pod.SecurityContext.RunAsNonRoot || !*c.SecurityContext.ReadOnlyRootFilesystem || *c.SecurityContext.AllowPrivilegeEscalation ||
			!slices.Equal(c.SecurityContext.Capabilities.Drop, []corev1.Capability{"ALL"}) || pod.SecurityContext.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
			t.Errorf("%s: %+v %+v", kind, pod.SecurityContext, c.SecurityContext)
		}
		must.Equal(t, "memory has no limit", false, c.Resources.Limits.Memory().IsZero())
		for _, e := range c.Env {
			must.Hold(t, e.ValueFrom == nil || e.ValueFrom.SecretKeyRef == nil,
				"%s: %s is a secret in the environment", kind, e.Name)
		}
		paths := map[string]bool{}
		for _, m := range c.VolumeMounts {
			must.Hold(t, !paths[m.MountPath], "%s: two volumes at %s", kind, m.MountPath)
			paths[m.MountPath] = true
			v := pod.Volumes[slices.IndexFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name })]
			must.Hold(t, v.EmptyDir != nil || v.PersistentVolumeClaim != nil || m.ReadOnly,
				"%s: %s can be written to", kind, m.MountPath)
			must.Hold(t, v.Secret == nil || *v.Secret.Optional,
				"%s: without Secret %s its pod does not start, and so can't say which one is missing", kind, v.Name)
			must.Hold(t, v.Name != "trust" && v.Name != "plan" || *v.ConfigMap.Optional,
				"%s: without ConfigMap %s its pod does not start", kind, v.Name)
			must.Hold(t, m.MountPath != attempt.WorkDir || v.EmptyDir.Medium == corev1.StorageMediumMemory,
				"%s: journals are not in memory", kind)
		}
		from := c.EnvFrom[0].SecretRef
		must.Hold(t, from.Optional != nil && *from.Optional, "%s: without Secret %s its pod does not start", kind, from.Name)
		for _, m := range needed(cluster().Spec) {
			if dir, _ := strings.CutSuffix(m.Path, m.Path[strings.LastIndex(m.Path, "/"):]); !paths[dir] && !paths[m.Path] {
				t.Errorf("%s: %s is not mounted", kind, m.Path)
			}
		}
	}
}

// TestJobEndsOnce: recast is never run twice at a time, and never again after what a person has to look at.
func TestJobEndsOnce(t *testing.T) {
	t.Parallel()
	for _, kind := range kinds {
		s := made(kind).Spec
		if *s.BackoffLimit != 0 || *s.PodReplacementPolicy != batchv1.Failed || s.Template.Spec.RestartPolicy != corev1.RestartPolicyNever {
			t.Errorf("%s: %+v", kind, s)
		}
		ignored := s.PodFailurePolicy.Rules[0]
		if ignored.Action != batchv1.PodFailurePolicyActionIgnore || ignored.OnPodConditions[0].Type != corev1.DisruptionTarget {
			t.Errorf("%s: an eviction is no failure: %+v", kind, ignored)
		}
		var stops []int32
		for _, r := range s.PodFailurePolicy.Rules[1:] {
			if r.Action == batchv1.PodFailurePolicyActionFailJob {
				stops = append(stops, r.OnExitCodes.Values...)
			}
		}
		must.Hold(t, slices.Equal(stops, []int32{attempt.ExitConfig, attempt.ExitRefused, attempt.ExitClaimed}),
			"%s: these end it: %v", kind, stops)
	}
	grace := *made(attempt.Roll).Spec.Template.Spec.TerminationGracePeriodSeconds
	must.Hold(t, grace == 3600, "a roll has %d s for the node in progress", grace)
}

// TestNamesFit: names and labels are valid for the longest names that the CRDs allow.
func TestNamesFit(t *testing.T) {
	t.Parallel()
	for _, kind := range kinds {
		j := made(kind)
		if problems := validation.IsDNS1123Label(j.Name); len(problems) > 0 {
			t.Errorf("%s: %v", j.Name, problems)
		}
		for key, value := range j.Labels {
			if problems := validation.IsValidLabelValue(value); len(problems) > 0 {
				t.Errorf("%s=%s: %v", key, value, problems)
			}
		}
	}
	r := &v1alpha1.ImageRoll{ObjectMeta: metav1.ObjectMeta{Name: strings.Repeat("r", 50)}, Spec: v1alpha1.ImageRollSpec{ClusterName: strings.Repeat("c", 40)}}
	for _, o := range append(OfCluster(cluster()), OfRoll(r)...) {
		if problems := validation.IsDNS1123Subdomain(o.GetName()); len(problems) > 0 {
			t.Errorf("%s: %v", o.GetName(), problems)
		}
	}
}

// TestBackups: snapshots of etcd are kept on disk, in the claim if there is one.
func TestBackups(t *testing.T) {
	t.Parallel()
	for _, claim := range []string{"", "backups"} {
		for _, kind := range kinds {
			c := cluster()
			c.Spec.Job.BackupClaim = claim
			pod := New(Spec{Cluster: c, Task: Task(c, kind), Image: "recast:v1"}).Spec.Template.Spec
			i := slices.IndexFunc(pod.Containers[0].VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == attempt.BackupDir })
			rolls := kind == attempt.Roll || kind == attempt.Kubernetes
			must.Hold(t, rolls == (i >= 0), "%s: mounted: %v", kind, i >= 0)
			if i < 0 {
				continue
			}
			m := pod.Containers[0].VolumeMounts[i]
			v := pod.Volumes[slices.IndexFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name })]
			switch {
			case m.ReadOnly:
				t.Errorf("%s: it can't be written to", kind)
			case claim == "" && (v.EmptyDir == nil || v.EmptyDir.Medium != corev1.StorageMediumDefault),
				claim != "" && (v.PersistentVolumeClaim == nil || v.PersistentVolumeClaim.ClaimName != claim):
				t.Errorf("%s with claim %q: %+v", kind, claim, v)
			}
		}
	}
}

// TestPlace: a Job runs on a control plane, whose taint it tolerates, unless its cluster names other nodes.
func TestPlace(t *testing.T) {
	t.Parallel()
	for _, kind := range kinds {
		pod := made(kind).Spec.Template.Spec
		required := pod.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
		must.Be(t, required != nil, "a %s runs anywhere", kind)
		want := []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "node-role.kubernetes.io/control-plane", Operator: corev1.NodeSelectorOpExists}}}}
		must.Equal(t, "nodes of a "+string(kind), want, required.NodeSelectorTerms)
		tolerated := []corev1.Toleration{{Key: "node-role.kubernetes.io/control-plane", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}}
		must.Equal(t, "what a "+string(kind)+" tolerates", tolerated, pod.Tolerations)
	}
	c := cluster()
	c.Spec.Job.NodeSelector = map[string]string{"rolls": "here"}
	pod := New(Spec{Cluster: c, Task: Task(c, attempt.Check), NodeLabel: "node-role.kubernetes.io/control-plane"}).Spec.Template.Spec
	must.Hold(t, pod.NodeSelector["rolls"] == "here" && pod.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil && len(pod.Tolerations) == 0,
		"a cluster that names its nodes: %+v", pod)
}
