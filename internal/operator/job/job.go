// Package job computes the Kubernetes objects of an attempt: the Job, and the ServiceAccount, the Role and the
// ConfigMaps that its pod needs. It creates none of them.
package job

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strconv"

	"github.com/recast-sh/recast/api/v1alpha1"
	"github.com/recast-sh/recast/internal/operator/attempt"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	container = "recast"
	user      = 65532 // user ID in the image
	kept      = 24 * 60 * 60
	// limits of Jobs, in seconds
	readDeadline = 30 * 60
	rollDeadline = 24 * 60 * 60
	readGrace    = 30
)

// Made returns the labels of all objects that the operator makes for Jobs.
func Made() map[string]string {
	return map[string]string{"app.kubernetes.io/name": "recast-job", "app.kubernetes.io/managed-by": "recast-operator"}
}

// Labels returns the labels of all objects of a cluster, or of one roll of the cluster.
func Labels(cluster, roll string) map[string]string {
	l := Made()
	l[v1alpha1.LabelCluster] = cluster
	if roll != "" {
		l[v1alpha1.LabelRoll] = roll
	}
	return l
}

type Spec struct {
	Cluster *v1alpha1.TalosCluster
	Task    attempt.Task
	Image   string // "": spec.job.image of the cluster
	Plan    string // ConfigMap with the plan that a roll carries out
	// NodeLabel is a key. The pod runs on nodes that have it, unless the cluster names others; "": on any.
	NodeLabel string
	// Near is a node's name. The pod should run on that node, so that a cluster that rolls itself takes it last.
	Near string
}

// New returns the Job of an attempt. The Job never has two pods at a time: an evicted pod is replaced after it has
// ended. Any other end of the pod ends the Job.
func New(s Spec) *batchv1.Job {
	task := s.Task
	meta := metav1.ObjectMeta{Namespace: task.Namespace, Name: task.Job, Labels: Labels(task.Cluster, task.Roll)}
	rolls := task.Kind == attempt.Roll || task.Kind == attempt.Kubernetes
	deadline, grace := int64(readDeadline), int64(readGrace)
	if rolls {
		deadline, grace = rollDeadline, s.Cluster.Spec.Job.TerminationGracePeriodSeconds
	}
	exits := func(codes ...int32) batchv1.PodFailurePolicyRule {
		return batchv1.PodFailurePolicyRule{
			Action:      batchv1.PodFailurePolicyActionFailJob,
			OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{ContainerName: new(container), Operator: batchv1.PodFailurePolicyOnExitCodesOpIn, Values: codes},
		}
	}
	return &batchv1.Job{
		TypeMeta:   metav1.TypeMeta{APIVersion: "batch/v1", Kind: "Job"},
		ObjectMeta: meta,
		Spec: batchv1.JobSpec{
			BackoffLimit:            new(int32(0)), // the operator, not the Job, begins the next attempt
			PodReplacementPolicy:    new(batchv1.Failed),
			ActiveDeadlineSeconds:   &deadline,
			TTLSecondsAfterFinished: new(int32(kept)),
			PodFailurePolicy: &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{
				{
					Action:          batchv1.PodFailurePolicyActionIgnore,
					OnPodConditions: []batchv1.PodFailurePolicyOnPodConditionsPattern{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue}},
				},
				exits(attempt.ExitConfig, attempt.ExitRefused),
				exits(attempt.ExitClaimed),
			}},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: meta.Labels},
				Spec:       pod(s, grace, rolls),
			},
		},
	}
}

func pod(s Spec, grace int64, rolls bool) corev1.PodSpec {
	settings := s.Cluster.Spec.Job
	volumes, mounts := volumes(s, rolls)
	p := corev1.PodSpec{
		RestartPolicy:                 corev1.RestartPolicyNever,
		ServiceAccountName:            Account(s.Cluster.Name),
		AutomountServiceAccountToken:  new(true), // to report: see Role
		EnableServiceLinks:            new(false),
		TerminationGracePeriodSeconds: &grace,
		ImagePullSecrets:              settings.ImagePullSecrets,
		NodeSelector:                  settings.NodeSelector,
		Tolerations:                   settings.Tolerations,
		SecurityContext: &corev1.PodSecurityContext{
			RunAsNonRoot: new(true), RunAsUser: new(int64(user)), RunAsGroup: new(int64(user)), FSGroup: new(int64(user)),
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
		Containers: []corev1.Container{{
			Name:    container,
			Image:   cmp.Or(settings.Image, s.Image),
			Command: []string{"/usr/bin/recast-operator", "attempt"},
			Env:     environment(s),
			EnvFrom: environmentFrom(s),
			SecurityContext: &corev1.SecurityContext{
				AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true),
				Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			},
			Resources:    resources(settings),
			VolumeMounts: mounts,
		}},
		Volumes: volumes,
	}
	place(&p, s)
	return p
}

// place says which nodes may run a pod, and which one should. A worker is what a roll takes away, and its root reads
// the Secrets of the pods that it runs.
func place(p *corev1.PodSpec, s Spec) {
	near := &corev1.NodeAffinity{}
	node := func(r corev1.NodeSelectorRequirement) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{r}}
	}
	if s.Near != "" {
		near.PreferredDuringSchedulingIgnoredDuringExecution = []corev1.PreferredSchedulingTerm{{
			Weight:     100,
			Preference: node(corev1.NodeSelectorRequirement{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{s.Near}}),
		}}
	}
	if s.NodeLabel != "" && len(p.NodeSelector) == 0 {
		near.RequiredDuringSchedulingIgnoredDuringExecution = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
			node(corev1.NodeSelectorRequirement{Key: s.NodeLabel, Operator: corev1.NodeSelectorOpExists}),
		}}
		p.Tolerations = append(slices.Clone(p.Tolerations), corev1.Toleration{Key: s.NodeLabel, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule})
	}
	p.Affinity = &corev1.Affinity{NodeAffinity: near}
}

func resources(settings v1alpha1.JobSettings) corev1.ResourceRequirements {
	if settings.Resources != nil {
		return *settings.Resources
	}
	return corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("50m"), corev1.ResourceMemory: resource.MustParse("128Mi")},
		Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")},
	}
}

func environment(s Spec) []corev1.EnvVar {
	field := func(name, path string) corev1.EnvVar {
		return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}}
	}
	env := []corev1.EnvVar{
		{Name: attempt.TaskVariable, Value: s.Task.String()},
		{Name: "TALOSCONFIG", Value: attempt.Talosconfig},
		{Name: "KUBECONFIG", Value: attempt.Kubeconfig},
		{Name: "HOME", Value: attempt.ScratchDir},
		{Name: "TMPDIR", Value: attempt.ScratchDir},
		// When recast drains the node that it runs on, it must not wait for its own pod.
		field("RECAST_POD_NAMESPACE", "metadata.namespace"),
		field("RECAST_POD_NAME", "metadata.name"),
		field("RECAST_POD_UID", "metadata.uid"),
	}
	spec := s.Cluster.Spec
	if spec.Secrets.AgeKey != nil {
		env = append(env, corev1.EnvVar{Name: "SOPS_AGE_KEY_FILE", Value: attempt.AgeKey})
	}
	if spec.Source.OCI != nil && spec.Source.OCI.SecretName != "" {
		env = append(env, corev1.EnvVar{Name: "DOCKER_CONFIG", Value: attempt.RegistryDir})
	}
	if spec.Job.TrustBundle != "" {
		env = append(env, corev1.EnvVar{Name: "SSL_CERT_DIR", Value: "/etc/ssl/certs:" + attempt.TrustDir})
	}
	return env
}

// environmentFrom returns the sources of spec.secrets.envFrom. They are optional, as the volumes are: a pod that does
// not start can't report what is missing.
func environmentFrom(s Spec) []corev1.EnvFromSource {
	name := s.Cluster.Spec.Secrets.EnvFrom
	if name == "" {
		return nil
	}
	return []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}, Optional: new(true)}}}
}

// Name returns the name of the n-th Job of a kind, for the cluster or the roll called of.
func Name(of string, kind attempt.Kind, n int64) string {
	short := string(kind)
	if kind == attempt.Kubernetes {
		short = "k8s" // a name has at most 63 characters
	}
	return fmt.Sprintf("%s-%s-%d", of, short, n)
}

// fileDir is the directory at which the i-th of spec.secrets.files is mounted.
func fileDir(i int) string { return attempt.FilesDir + "/" + strconv.Itoa(i) }

// Account returns the name of a cluster's ServiceAccount, and of the other objects that a cluster has once. The
// operator alone uses such names: it overwrites an object that has one.
func Account(cluster string) string { return "recast-cluster-" + cluster }

// PlanName returns the name of the ConfigMap with the plan of a roll.
func PlanName(roll string) string { return "recast-roll-" + roll + "-plan" }

// ReportName returns the name of the ConfigMap with the report of a roll.
func ReportName(roll string) string { return "recast-roll-" + roll + "-report" }

// OfCluster returns the objects that a cluster has once: the account of its Jobs, the rights of that account during a
// check, and the ConfigMap for the results.
func OfCluster(c *v1alpha1.TalosCluster) []client.Object {
	name := Account(c.Name)
	meta := metav1.ObjectMeta{Namespace: c.Namespace, Name: name, Labels: Labels(c.Name, "")}
	return append(access(meta, name, statusOf("talosclusters", c.Name), results(name)),
		&corev1.ServiceAccount{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"}, ObjectMeta: meta, AutomountServiceAccountToken: new(false)},
		configMap(meta))
}

// OfRoll returns the objects that a roll has once.
func OfRoll(r *v1alpha1.ImageRoll) []client.Object {
	plan, report := PlanName(r.Name), ReportName(r.Name)
	meta := metav1.ObjectMeta{Namespace: r.Namespace, Labels: Labels(r.Spec.ClusterName, r.Name)}
	named := func(name string) metav1.ObjectMeta { m := meta; m.Name = name; return m }
	return append(access(named("recast-roll-"+r.Name), Account(r.Spec.ClusterName), statusOf("imagerolls", r.Name), results(plan, report)),
		configMap(named(plan)), configMap(named(report)))
}

func access(meta metav1.ObjectMeta, account string, rules ...rbacv1.PolicyRule) []client.Object {
	return []client.Object{
		&rbacv1.Role{TypeMeta: metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "Role"}, ObjectMeta: meta, Rules: rules},
		&rbacv1.RoleBinding{
			TypeMeta: metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "RoleBinding"}, ObjectMeta: meta,
			RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: meta.Name},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: meta.Namespace, Name: account}},
		},
	}
}

func statusOf(resource, name string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{v1alpha1.GroupVersion.Group}, Resources: []string{resource + "/status"}, ResourceNames: []string{name}, Verbs: []string{"patch"}}
}

// results is a rule that lets an account fill in existing ConfigMaps.
func results(names ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: names, Verbs: []string{"patch"}}
}

func configMap(meta metav1.ObjectMeta) *corev1.ConfigMap {
	return &corev1.ConfigMap{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, ObjectMeta: meta}
}

// readable is the mode of files that only the container's user may read, by the group of the volume.
const readable = int32(0o440)

type mounting struct {
	volumes []corev1.Volume
	mounts  []corev1.VolumeMount
}

func (m *mounting) add(name, at string, readOnly bool, source corev1.VolumeSource) {
	m.volumes = append(m.volumes, corev1.Volume{Name: name, VolumeSource: source})
	m.mounts = append(m.mounts, corev1.VolumeMount{Name: name, MountPath: at, ReadOnly: readOnly})
}

// secret mounts a Secret, or keys of it. The volume is optional, so that the pod starts without the Secret and
// reports that it is missing.
func (m *mounting) secret(name, at, secret string, items ...corev1.KeyToPath) {
	m.add(name, at, true, corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: secret, Items: items, DefaultMode: new(readable), Optional: new(true)}})
}

func (m *mounting) configMap(name, at, configMap string, optional bool, items ...corev1.KeyToPath) {
	m.add(name, at, true, corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
		LocalObjectReference: corev1.LocalObjectReference{Name: configMap}, Items: items, DefaultMode: new(readable), Optional: &optional,
	}})
}

func emptyDir(medium corev1.StorageMedium, size string) corev1.VolumeSource {
	limit := resource.MustParse(size)
	return corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: medium, SizeLimit: &limit}}
}

func volumes(s Spec, rolls bool) ([]corev1.Volume, []corev1.VolumeMount) {
	spec := s.Cluster.Spec
	m := &mounting{}
	m.add("work", attempt.WorkDir, false, emptyDir(corev1.StorageMediumMemory, "256Mi"))
	m.add("scratch", attempt.ScratchDir, false, emptyDir("", "16Gi"))
	if rolls {
		m.configMap("plan", attempt.PlanDir, s.Plan, true) // optional: the pod reports a missing plan
	} else {
		m.source(spec.Source)
	}
	for i, key := range required(spec) {
		m.secret(fmt.Sprintf("secret-%d", i), path.Dir(key.Path), key.Secret, corev1.KeyToPath{Key: key.Key, Path: path.Base(key.Path)})
	}
	if spec.Secrets.EnvFrom != "" {
		m.secret("env", attempt.EnvDir, spec.Secrets.EnvFrom)
	}
	if spec.Source.OCI != nil && spec.Source.OCI.SecretName != "" {
		m.secret("registry", attempt.RegistryDir, spec.Source.OCI.SecretName, corev1.KeyToPath{Key: corev1.DockerConfigJsonKey, Path: "config.json"})
	}
	if !rolls && spec.Lock == v1alpha1.LockUpdate {
		m.configMap("lock", attempt.LockDir, Account(s.Cluster.Name), true, corev1.KeyToPath{Key: attempt.KeyLock, Path: attempt.KeyLock})
	}
	if spec.Job.TrustBundle != "" {
		m.configMap("trust", attempt.TrustDir, spec.Job.TrustBundle, true, corev1.KeyToPath{Key: "ca.crt", Path: "ca.crt"})
	}
	if rolls {
		m.add("backups", attempt.BackupDir, false, backups(spec.Job.BackupClaim))
	}
	return m.volumes, m.mounts
}

// backups returns the volume for etcd snapshots. A snapshot may be too large for the memory volume with recast.yaml.
func backups(claim string) corev1.VolumeSource {
	if claim == "" {
		return emptyDir("", "4Gi")
	}
	return corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}
}

func (m *mounting) source(src v1alpha1.Source) {
	switch {
	case src.ConfigMap != nil:
		m.configMap("source", attempt.SourceDir, src.ConfigMap.Name, false)
	case src.Git != nil && src.Git.SecretName != "":
		m.secret("git", attempt.GitDir, src.Git.SecretName)
	}
}

// required lists the keys of Secrets without which recast can't run. Each key has a directory of its own.
func required(spec v1alpha1.TalosClusterSpec) []attempt.Mounted {
	key := func(field string, k v1alpha1.SecretKey, byDefault, at string) attempt.Mounted {
		return attempt.Mounted{Path: at, Secret: k.Name, Key: cmp.Or(k.Key, byDefault), Field: "spec.secrets." + field}
	}
	s := spec.Secrets
	keys := []attempt.Mounted{
		key("proxmoxToken", s.ProxmoxToken, "token", attempt.ProxmoxToken),
		key("talosconfig", s.Talosconfig, "talosconfig", attempt.Talosconfig),
		key("kubeconfig", s.Kubeconfig, "kubeconfig", attempt.Kubeconfig),
	}
	if s.AgeKey != nil {
		keys = append(keys, key("ageKey", *s.AgeKey, "age.agekey", attempt.AgeKey))
	}
	for i, f := range s.Files {
		keys = append(keys, key(fmt.Sprintf("files[%d]", i), f.SecretKey, path.Base(f.Path), fileDir(i)+"/file"))
	}
	return keys
}

func needed(spec v1alpha1.TalosClusterSpec) []attempt.Mounted {
	all := required(spec)
	if name := spec.Secrets.EnvFrom; name != "" {
		all = append(all, attempt.Mounted{Path: attempt.EnvDir, Secret: name, Field: "spec.secrets.envFrom"})
	}
	if name := spec.Job.TrustBundle; name != "" {
		all = append(all, attempt.Mounted{Path: attempt.TrustDir + "/ca.crt", Secret: name, ConfigMap: true, Key: "ca.crt", Field: "spec.job.trustBundle"})
	}
	return all
}

// Task returns a task with everything that follows from its cluster.
func Task(c *v1alpha1.TalosCluster, kind attempt.Kind) attempt.Task {
	var kept string
	if check := c.Status.Check; check != nil {
		kept = check.KeptLock
	}
	return attempt.Task{
		KeptLock: kept,
		Kind:     kind, Namespace: c.Namespace, Cluster: c.Name,
		Source: c.Spec.Source, Lock: c.Spec.Lock,
		Secrets: needed(c.Spec), Files: c.Spec.Secrets.Files,
		AcceptOutage: c.Spec.Rolls.AcceptOutage,
		TalosVersion: TalosTarget(c), KubernetesVersion: KubernetesTarget(c),
	}
}

// TalosTarget returns the version that replaces the version of recast.yaml; "": none does.
func TalosTarget(c *v1alpha1.TalosCluster) string {
	return cmp.Or(c.Annotations[v1alpha1.AnnotationTalosTarget], c.Spec.TalosVersion)
}

// KubernetesTarget is TalosTarget for Kubernetes.
func KubernetesTarget(c *v1alpha1.TalosCluster) string {
	return cmp.Or(c.Annotations[v1alpha1.AnnotationKubernetesTarget], c.Spec.KubernetesVersion)
}
