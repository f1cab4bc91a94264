package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/recast-sh/recast/internal/sim/must"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	network "k8s.io/api/networking/v1"
	rbac "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"
)

const manifests = "../../examples/kubernetes/drift-cronjob.yaml"

// nightly is the content of the manifests. Unknown and duplicate fields fail the test.
type nightly struct {
	core.Namespace
	account core.ServiceAccount
	role    rbac.ClusterRole
	binding rbac.ClusterRoleBinding
	config  core.ConfigMap
	job     batch.CronJob
	network network.NetworkPolicy
}

func readNightly(t *testing.T) (n nightly) {
	t.Helper()
	text := must.Get(os.ReadFile(manifests))(t)
	kinds := map[string]any{
		"Namespace": &n.Namespace, "ServiceAccount": &n.account, "ClusterRole": &n.role, "ClusterRoleBinding": &n.binding,
		"ConfigMap": &n.config, "CronJob": &n.job, "NetworkPolicy": &n.network,
	}
	for doc := range strings.SplitSeq(string(text), "\n---\n") {
		var of struct{ Kind string }
		must.Do(t, yaml.Unmarshal([]byte(doc), &of))
		into, ok := kinds[of.Kind]
		if !ok {
			t.Fatalf("kind %q, or two of it", of.Kind)
		}
		if err := yaml.UnmarshalStrict([]byte(doc), into); err != nil {
			t.Errorf("%s: %v", of.Kind, err)
		}
		delete(kinds, of.Kind)
	}
	if len(kinds) > 0 {
		t.Errorf("missing: %v", kinds)
	}
	return n
}

// TestCronJobFitsTogether: each object refers to the others by their correct names.
func TestCronJobFitsTogether(t *testing.T) {
	t.Parallel()
	n := readNightly(t)
	pod := n.job.Spec.JobTemplate.Spec.Template
	for what, names := range map[string][2]string{
		"the binding's role":        {n.binding.RoleRef.Name, n.role.Name},
		"the binding's account":     {n.binding.Subjects[0].Name, n.account.Name},
		"the binding's namespace":   {n.binding.Subjects[0].Namespace, n.Name},
		"the pod's account":         {pod.Spec.ServiceAccountName, n.account.Name},
		"the CronJob's namespace":   {n.job.Namespace, n.Name},
		"the kubeconfig's volume":   {volume(t, pod.Spec, "kubeconfig").ConfigMap.Name, n.config.Name},
		"the network policy's pods": {n.network.Spec.PodSelector.MatchLabels["app.kubernetes.io/name"], pod.Labels["app.kubernetes.io/name"]},
	} {
		must.Equal(t, what, names[1], names[0])
	}
	for _, c := range pod.Spec.Containers {
		for _, m := range c.VolumeMounts {
			volume(t, pod.Spec, m.Name)
			if !m.ReadOnly && m.Name != "metrics" {
				t.Errorf("%s may write to %s", c.Name, m.Name)
			}
		}
	}
}

// TestCronJobTypesRecast: the command exists, and its files are mounted.
func TestCronJobTypesRecast(t *testing.T) {
	t.Parallel()
	pod := readNightly(t).job.Spec.JobTemplate.Spec.Template.Spec
	i := slices.IndexFunc(pod.Containers, func(c core.Container) bool { return strings.HasPrefix(c.Image, "ghcr.io/recast-sh/recast:") })
	if i < 0 {
		t.Fatal("no container of recast's image")
	}
	c := pod.Containers[i]
	if err := understood(c.Args); err != nil || c.Args[0] != "drift" {
		t.Errorf("recast %s: %v", strings.Join(c.Args, " "), err)
	}
	files := regexp.MustCompile(`^/[a-z]+/`)
	for _, arg := range append(c.Args, c.Env[1].Value, c.Env[2].Value) {
		dir := strings.TrimSuffix(files.FindString(arg), "/")
		if dir != "" && !slices.ContainsFunc(c.VolumeMounts, func(m core.VolumeMount) bool { return m.MountPath == dir }) {
			t.Errorf("nothing is mounted at %s", dir)
		}
	}
	for _, c := range pod.Containers {
		s := c.SecurityContext
		if s == nil || !*s.ReadOnlyRootFilesystem || *s.AllowPrivilegeEscalation || !slices.Equal(s.Capabilities.Drop, []core.Capability{"ALL"}) {
			t.Errorf("%s may do more than it must: %+v", c.Name, s)
		}
	}
}

func volume(t *testing.T, pod core.PodSpec, name string) core.Volume {
	t.Helper()
	i := slices.IndexFunc(pod.Volumes, func(v core.Volume) bool { return v.Name == name })
	if i < 0 {
		t.Fatalf("no volume %s", name)
	}
	return pod.Volumes[i]
}

// TestNightlyToken creates the token with the example's instructions in a lab, and
// checks that the CronJob works with it.
func TestNightlyToken(t *testing.T) {
	long(t)
	t.Parallel()
	term := openLab(t, "--control-planes", "1", "--workers", "1")
	readme := must.Get(os.ReadFile(filepath.Join(filepath.Dir(manifests), "README.md")))(t)
	token := ""
	for _, line := range regexp.MustCompile(`(?m)^pveum (.+)$`).FindAllStringSubmatch(string(readme), -1) {
		args := strings.Fields(strings.NewReplacer(`"`, "", `'`, "").Replace(line[1]))
		out, _ := term.typed(exitDone, append([]string{"lab", "pveum", "--dir", term.dir}, args...)...)
		if secret := regexp.MustCompile(`full-tokenid (\S+)\nvalue (\S+)`).FindStringSubmatch(out); secret != nil {
			token = secret[1] + "=" + secret[2]
		}
	}
	if token == "" {
		t.Fatal("the instructions make no token")
	}
	term.env = append(term.env, "PROXMOX_VE_API_TOKEN="+token)
	without := filepath.Join(term.dir, "without.yaml") // the secrets of machine configurations
	text := strings.Replace(term.read("recast.yaml"), "talos:\n", "talos:\n  machineConfigs: ./nowhere\n", 1)
	must.Do(t, os.WriteFile(without, []byte(text), 0o600))
	file := filepath.Join(t.TempDir(), "recast-drift.prom")
	out, _ := term.typed(exitDone, "drift", "--what", "image", "--config", without, "--metrics-file", file)
	must.Contain(t, "drift", out, "2 nodes in sync")
	metrics, err := os.ReadFile(file)
	if err != nil || !strings.Contains(string(metrics), `recast_nodes{cluster="lab",command="drift",state="in-sync"} 2`) {
		t.Errorf("%v\n%s", err, metrics)
	}
	_, said := term.typed(exitConfig, "plan", "--config", without)
	must.Contain(t, "plan without the machine configurations", said, "talos.machineConfigs")
	out, _ = term.typed(exitRefused, "doctor")
	must.Contain(t, "doctor with a token that only looks", out, "problem VM.Allocate")
}
