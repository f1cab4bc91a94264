package deploy

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	network "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	rbac "k8s.io/api/rbac/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/recast-sh/recast/api/v1alpha1"
	"github.com/recast-sh/recast/internal/sim/must"
)

// installed is all that Manifests prints, decoded without unknown or duplicate fields.
type installed struct {
	kinds      []string // in order, each once
	objects    map[string]meta.Object
	namespace  *core.Namespace
	account    *core.ServiceAccount
	deployment *apps.Deployment
	budget     *policy.PodDisruptionBudget
	network    *network.NetworkPolicy
	roles      map[string]*rbac.ClusterRole
	election   *rbac.Role
	bindings   []rbac.RoleRef
	subjects   []rbac.Subject
	dashboard  *core.ConfigMap
	others     map[string]map[string]any // kinds that are no part of Kubernetes
}

func decode(t *testing.T, text string) installed {
	t.Helper()
	in := installed{objects: map[string]meta.Object{}, roles: map[string]*rbac.ClusterRole{}, others: map[string]map[string]any{}}
	for object := range strings.SplitSeq(text, "---\n") {
		var of meta.TypeMeta
		if err := yaml.Unmarshal([]byte(object), &of); err != nil {
			t.Fatalf("%v:\n%s", err, object)
		}
		into := in.into(of.Kind)
		if err := yaml.UnmarshalStrict([]byte(object), into); err != nil {
			t.Fatalf("%s: %v", of.Kind, err)
		}
		in.add(of.Kind, into)
	}
	return in
}

// into returns where an object of a kind is decoded to.
func (in *installed) into(kind string) any {
	switch kind {
	case "Namespace":
		in.namespace = &core.Namespace{}
		return in.namespace
	case "ServiceAccount":
		in.account = &core.ServiceAccount{}
		return in.account
	case "Deployment":
		in.deployment = &apps.Deployment{}
		return in.deployment
	case "PodDisruptionBudget":
		in.budget = &policy.PodDisruptionBudget{}
		return in.budget
	case "NetworkPolicy":
		in.network = &network.NetworkPolicy{}
		return in.network
	case "ConfigMap":
		in.dashboard = &core.ConfigMap{}
		return in.dashboard
	case "Role":
		in.election = &rbac.Role{}
		return in.election
	case "ClusterRole":
		return &rbac.ClusterRole{}
	case "ClusterRoleBinding":
		return &rbac.ClusterRoleBinding{}
	case "RoleBinding":
		return &rbac.RoleBinding{}
	}
	return &map[string]any{}
}

func (in *installed) add(kind string, object any) {
	if !slices.Contains(in.kinds, kind) {
		in.kinds = append(in.kinds, kind)
	}
	name := ""
	switch o := object.(type) {
	case *map[string]any:
		m := (*o)["metadata"].(map[string]any)
		name = fmt.Sprint(m["name"])
		in.others[kind+"/"+name] = *o
		ns, _ := m["namespace"].(string)
		in.objects[kind+"/"+name] = &meta.ObjectMeta{Name: name, Namespace: ns}
		return
	case *rbac.ClusterRole:
		in.roles[o.Name] = o
	case *rbac.ClusterRoleBinding:
		in.bindings, in.subjects = append(in.bindings, o.RoleRef), append(in.subjects, o.Subjects...)
	case *rbac.RoleBinding:
		in.bindings, in.subjects = append(in.bindings, o.RoleRef), append(in.subjects, o.Subjects...)
	}
	o := object.(meta.Object)
	in.objects[kind+"/"+o.GetName()] = o
}

func manifests(t *testing.T, o Options) installed {
	t.Helper()
	text := must.Get(Manifests(o))(t)
	return decode(t, text)
}

// TestManifests checks that the objects come in an order in which each finds what it
// needs, and that they refer to each other by their names, in any namespace.
func TestManifests(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]Options{
		"defaults": {},
		"options":  {Namespace: "talos", Image: "registry.example:5000/recast@sha256:abc", Replicas: 1, NodeLabel: "a/b", Monitoring: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := manifests(t, o)
			wantKinds := []string{"CustomResourceDefinition", "Namespace", "ServiceAccount", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "ClusterRole", "Role", "RoleBinding", "Deployment", "PodDisruptionBudget", "NetworkPolicy"}
			want := Options{Namespace: "recast-system", Image: "ghcr.io/recast-sh/recast:latest", Replicas: 2, NodeLabel: "node-role.kubernetes.io/control-plane"}
			if o.Monitoring {
				want = o
				wantKinds = append(wantKinds, "PrometheusRule", "ConfigMap", "PodMonitor")
			}
			must.Equal(t, "kinds", wantKinds, in.kinds)
			in.requireFit(t)
			pod := in.deployment.Spec.Template.Spec
			got := Options{Namespace: in.namespace.Name, Image: pod.Containers[0].Image, Replicas: int(*in.deployment.Spec.Replicas), NodeLabel: pod.Tolerations[0].Key, Monitoring: want.Monitoring}
			must.Equal(t, "what it says", want, got)
			nodes := pod.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
			must.Equal(t, "nodes", []core.NodeSelectorTerm{{MatchExpressions: []core.NodeSelectorRequirement{{Key: want.NodeLabel, Operator: core.NodeSelectorOpExists}}}}, nodes)
			must.Equal(t, "nodes of Jobs", "--job-node-label="+want.NodeLabel, pod.Containers[0].Args[1])
		})
	}
}

// requireFit checks that all objects are of one installation.
func (in *installed) requireFit(t *testing.T) {
	t.Helper()
	for name, o := range in.objects {
		kind, _, _ := strings.Cut(name, "/")
		wide := slices.Contains([]string{"CustomResourceDefinition", "Namespace", "ClusterRole", "ClusterRoleBinding", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}, kind)
		ns := o.GetNamespace()
		must.Hold(t, (!wide || ns == "") && (wide || ns == in.namespace.Name), "%s is in namespace %q", name, ns)
	}
	account := rbac.Subject{Kind: "ServiceAccount", Name: in.account.Name, Namespace: in.namespace.Name}
	for i, s := range in.subjects {
		must.Equal(t, in.bindings[i].Name+" is bound to", account, s)
		if in.objects[in.bindings[i].Kind+"/"+in.bindings[i].Name] == nil {
			t.Errorf("a binding to %+v, which does not exist", in.bindings[i])
		}
	}
	template := in.deployment.Spec.Template
	for what, selector := range map[string]*meta.LabelSelector{
		"Deployment": in.deployment.Spec.Selector, "PodDisruptionBudget": in.budget.Spec.Selector,
		"NetworkPolicy": &in.network.Spec.PodSelector, "spread": template.Spec.TopologySpreadConstraints[0].LabelSelector,
	} {
		s, err := meta.LabelSelectorAsSelector(selector)
		must.Hold(t, err == nil && !s.Empty() && s.Matches(labelSet(template.Labels)),
			"the selector of %s is %v, the pods' labels are %v: %v", what, s, template.Labels, err)
	}
	must.Equal(t, "account of the pods", in.account.Name, template.Spec.ServiceAccountName)
	c := template.Spec.Containers[0]
	if i := slices.IndexFunc(c.Env, func(e core.EnvVar) bool { return e.Name == "RECAST_IMAGE" }); i < 0 || c.Env[i].Value != c.Image {
		t.Errorf("the image is %s, that of the Jobs is not: %+v", c.Image, c.Env)
	}
}

type labelSet map[string]string

func (l labelSet) Has(name string) bool              { _, ok := l[name]; return ok }
func (l labelSet) Get(name string) string            { return l[name] }
func (l labelSet) Lookup(name string) (string, bool) { v, ok := l[name]; return v, ok }

// TestPodIsRestricted: what the Pod Security Standard "restricted" asks for, and more.
func TestPodIsRestricted(t *testing.T) {
	t.Parallel()
	in := manifests(t, Options{})
	must.Equal(t, "what the namespace enforces", "restricted", in.namespace.Labels["pod-security.kubernetes.io/enforce"])
	pod := in.deployment.Spec.Template.Spec
	if s := pod.SecurityContext; !*s.RunAsNonRoot || *s.RunAsUser != 65532 || s.SeccompProfile.Type != core.SeccompProfileTypeRuntimeDefault {
		t.Errorf("pod: %+v", s)
	}
	for _, c := range pod.Containers {
		s := c.SecurityContext
		if !*s.ReadOnlyRootFilesystem || *s.AllowPrivilegeEscalation || !slices.Equal(s.Capabilities.Drop, []core.Capability{"ALL"}) {
			t.Errorf("container: %+v", s)
		}
		if c.Resources.Requests.Cpu().String() != "20m" || c.Resources.Requests.Memory().String() != "64Mi" || c.Resources.Limits.Memory().String() != "256Mi" {
			t.Errorf("resources: %+v", c.Resources)
		}
		for what, probe := range map[string]*core.Probe{"/healthz": c.LivenessProbe, "/readyz": c.ReadinessProbe} {
			if probe.HTTPGet.Path != what || !slices.ContainsFunc(c.Ports, func(p core.ContainerPort) bool { return p.Name == probe.HTTPGet.Port.StrVal }) {
				t.Errorf("%s: %+v", what, probe)
			}
		}
	}
	must.Hold(t, len(pod.Volumes) == 0, "volumes: %+v", pod.Volumes)
}

// TestAccess: the operator reads no Secret, and can give itself and others nothing that it has not.
func TestAccess(t *testing.T) {
	t.Parallel()
	in := manifests(t, Options{})
	rules := slices.Concat(in.roles["recast-operator"].Rules, in.election.Rules)
	for _, r := range rules {
		for _, s := range slices.Concat(r.APIGroups, r.Resources, r.Verbs) {
			if slices.Contains([]string{"*", "secrets", "nodes", "pods/exec", "escalate", "bind", "impersonate", "deletecollection"}, s) {
				t.Errorf("%s in %+v", s, r)
			}
		}
	}
	may := func(verb, group, resource string) bool {
		return slices.ContainsFunc(in.roles["recast-operator"].Rules, func(r rbac.PolicyRule) bool {
			return slices.Contains(r.Verbs, verb) && slices.Contains(r.APIGroups, group) && slices.Contains(r.Resources, resource)
		})
	}
	// The Roles of Jobs allow this, and RBAC refuses a Role that allows more than its author may do.
	for _, resource := range [][2]string{{"recast.dev", "talosclusters/status"}, {"recast.dev", "imagerolls/status"}, {"", "configmaps"}} {
		if !may("patch", resource[0], resource[1]) {
			t.Errorf("patch of %s can't be given to Jobs", resource[1])
		}
	}
	for name, label := range map[string]string{"recast-viewer": "view", "recast-editor": "edit"} {
		if r := in.roles[name]; r.Labels["rbac.authorization.k8s.io/aggregate-to-"+label] != "true" || !slices.Equal(r.Rules[0].Resources, []string{"talosclusters", "imagerolls", "fleetrolls"}) {
			t.Errorf("%s: %v %+v", name, r.Labels, r.Rules)
		}
	}
}

// TestAccessPage: the roles allow what make e2e-operator has found to be needed, and no more.
func TestAccessPage(t *testing.T) {
	t.Parallel()
	in := manifests(t, Options{})
	var allowed, needed []string
	for _, r := range slices.Concat(in.roles["recast-operator"].Rules, in.election.Rules) {
		for _, verb := range r.Verbs {
			for _, resource := range r.Resources {
				allowed = append(allowed, verb+" "+strings.TrimPrefix(r.APIGroups[0]+"/"+resource, "/"))
			}
		}
	}
	page := string(must.Get(os.ReadFile("../docs/reference/operator-access.md"))(t))
	for _, row := range regexp.MustCompile(`(?m)^\| operator \| (\S+) \| (\S+) \|`).FindAllStringSubmatch(page, -1) {
		needed = append(needed, row[1]+" "+row[2])
	}
	slices.Sort(allowed)
	slices.Sort(needed)
	must.Equal(t, "rights: make e2e-operator ACCESS=1 writes the page afresh", needed, allowed)
}

// TestKustomizations: each lists every file beside it.
func TestKustomizations(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"crds/Kustomization", "base/kustomization.yaml", "all-namespaces/kustomization.yaml", "monitoring/kustomization.yaml"} {
		text := must.Get(os.ReadFile(name))(t)
		var k struct{ Resources []string }
		must.Do(t, yaml.Unmarshal(text, &k))
		beside := must.Get(filepath.Glob(filepath.Dir(name) + "/*.yaml"))(t)
		for _, file := range beside {
			base := filepath.Base(file)
			must.Hold(t, base == "kustomization.yaml" || slices.Contains(k.Resources, base), "%s does not list %s", name, base)
		}
	}
}

// TestPolicyOfJobs: the example selects the pods of every TalosCluster's Jobs, and lets nothing connect to them.
func TestPolicyOfJobs(t *testing.T) {
	t.Parallel()
	text := must.Get(os.ReadFile("../examples/kubernetes/jobs-network.yaml"))(t)
	var p network.NetworkPolicy
	must.Do(t, yaml.UnmarshalStrict(text, &p))
	s, err := meta.LabelSelectorAsSelector(&p.Spec.PodSelector)
	must.Hold(t, err == nil && s.Matches(labelSet{v1alpha1.LabelCluster: "a"}) && !s.Matches(labelSet{}),
		"it selects %v: %v", s, err)
	must.Hold(t, len(p.Spec.Ingress) == 0 && len(p.Spec.PolicyTypes) == 2 && len(p.Spec.Egress) == 2, "%+v", p.Spec)
}

// TestNamespaces: the operator has access to its own namespace, or to those that are listed. All are asked for by name.
func TestNamespaces(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		options  Options
		bindings []string // kind and namespace
		arg      string
	}{
		"its own": {Options{Namespace: "talos"}, []string{"RoleBinding talos"}, "--job-node-label=node-role.kubernetes.io/control-plane"},
		"listed":  {Options{Namespaces: []string{"a", "b"}}, []string{"RoleBinding a", "RoleBinding b"}, "--namespaces=a,b"},
		"all":     {Options{AllNamespaces: true}, []string{"RoleBinding recast-system", "ClusterRoleBinding "}, "--all-namespaces"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			text := must.Get(Manifests(c.options))(t)
			var got []string
			for object := range strings.SplitSeq(text, "---\n") {
				var b rbac.RoleBinding
				if err := yaml.Unmarshal([]byte(object), &b); err == nil && b.RoleRef.Kind == "ClusterRole" {
					got = append(got, b.Kind+" "+b.Namespace)
				}
			}
			must.Equal(t, "bindings of the ClusterRole", c.bindings, got)
			args := decode(t, text).deployment.Spec.Template.Spec.Containers[0].Args
			must.Equal(t, "last argument", c.arg, args[len(args)-1])
		})
	}
}

func TestManifestsRefuses(t *testing.T) {
	t.Parallel()
	for want, o := range map[string]Options{
		"not the name of a namespace": {Namespace: "Recast"},
		"not a reference to an":       {Image: "x: y"},
		`"a b" is not a reference`:    {JobImages: []string{"a b"}},
		"at least 1":                  {Replicas: -1},
		"not the key of a label":      {NodeLabel: "a=b"},
		`"A" is not the name`:         {Namespaces: []string{"a", "A"}},
		"one of the two":              {Namespaces: []string{"a"}, AllNamespaces: true},
	} {
		_, err := Manifests(o)
		must.Contain(t, "error", fmt.Sprint(err), want)
	}
}
