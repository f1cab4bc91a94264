package job

import (
	"cmp"
	"fmt"
	"path"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/recast-sh/recast/api/v1alpha1"
	"github.com/recast-sh/recast/internal/operator/attempt"
)

// readable is for the user of the container alone, by the group of the volume.
const readable = int32(0o440)

// mounting collects volumes and where they are mounted.
type mounting struct {
	volumes []corev1.Volume
	mounts  []corev1.VolumeMount
}

func (m *mounting) add(name, at string, readOnly bool, source corev1.VolumeSource) {
	m.volumes = append(m.volumes, corev1.Volume{Name: name, VolumeSource: source})
	m.mounts = append(m.mounts, corev1.VolumeMount{Name: name, MountPath: at, ReadOnly: readOnly})
}

// secret mounts a Secret, or keys of it. It is optional, so that the pod starts without it and says
// which one is missing.
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
		m.configMap("plan", attempt.PlanDir, s.Plan, true) // the pod says if it is gone
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

// backups is where etcd snapshots go. One may be larger than what fits into memory beside recast.yaml.
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

// required are the keys of Secrets without which recast can't run, each in a directory of its own.
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

// needed is what must be there for recast to run.
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

// Task fills in what a task has from its cluster.
func Task(c *v1alpha1.TalosCluster, kind attempt.Kind) attempt.Task {
	return attempt.Task{
		Kind: kind, Namespace: c.Namespace, Cluster: c.Name,
		Source: c.Spec.Source, Lock: c.Spec.Lock,
		Secrets: needed(c.Spec), Files: c.Spec.Secrets.Files,
		AcceptOutage: c.Spec.Rolls.AcceptOutage,
		TalosVersion: TalosTarget(c), KubernetesVersion: KubernetesTarget(c),
	}
}

// TalosTarget is the version that replaces that of recast.yaml; "": none does.
func TalosTarget(c *v1alpha1.TalosCluster) string {
	return cmp.Or(c.Annotations[v1alpha1.AnnotationTalosTarget], c.Spec.TalosVersion)
}

// KubernetesTarget is TalosTarget for Kubernetes.
func KubernetesTarget(c *v1alpha1.TalosCluster) string {
	return cmp.Or(c.Annotations[v1alpha1.AnnotationKubernetesTarget], c.Spec.KubernetesVersion)
}
