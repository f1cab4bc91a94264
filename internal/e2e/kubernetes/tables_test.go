package kubernetes

import (
	"encoding/json"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	_ "k8s.io/kubernetes/pkg/apis/apps/install" // decoded for the printers
	_ "k8s.io/kubernetes/pkg/apis/certificates/install"
	_ "k8s.io/kubernetes/pkg/apis/coordination/install"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	_ "k8s.io/kubernetes/pkg/apis/policy/install"
	_ "k8s.io/kubernetes/pkg/apis/rbac/install"
	_ "k8s.io/kubernetes/pkg/apis/storage/install"
	"k8s.io/kubernetes/pkg/printers"
	printersinternal "k8s.io/kubernetes/pkg/printers/internalversion"
)

// client is one of the lab's own Kubernetes API.
func (u *user) client() *kubernetes.Clientset {
	u.t.Helper()
	config := must(clientcmd.BuildConfigFromFlags("", filepath.Join(u.dir, "kubeconfig")))(u.t)
	return must(kubernetes.NewForConfig(config))(u.t)
}

// tables compares the table of every kind that the lab serves with that of Kubernetes' own
// printers for the same objects.
func (u *user) tables() {
	c := u.client()
	u.oddPods(c)
	groups := must(c.Discovery().ServerPreferredResources())(u.t)
	real := printers.NewTableGenerator().With(printersinternal.AddHandlers)
	for _, g := range groups {
		for _, r := range g.APIResources {
			gv := must(schema.ParseGroupVersion(g.GroupVersion))(u.t)
			path := "/api/v1/" + r.Name
			if gv.Group != "" {
				path = "/apis/" + g.GroupVersion + "/" + r.Name
			}
			diff := ""
			for range 20 { // an age may change between two requests
				if diff = u.compareTables(c, real, path, gv.WithResource(r.Name).GroupResource()); diff == "" {
					break
				}
				time.Sleep(100 * time.Millisecond)
			}
			if diff != "" {
				u.t.Errorf("%s (-Kubernetes' +the lab's):\n%s", path, diff)
			}
		}
	}
}

func (u *user) compareTables(c *kubernetes.Clientset, real printers.TableGenerator, path string, r schema.GroupResource) string {
	u.t.Helper()
	get := func(accept string) []byte {
		b, err := c.CoreV1().RESTClient().Get().AbsPath(path).SetHeader("Accept", accept).DoRaw(u.t.Context())
		if err != nil {
			u.t.Fatalf("%s: %v", path, err)
		}
		return b
	}
	list, err := runtime.Decode(legacyscheme.Codecs.UniversalDecoder(), get("application/json"))
	if err != nil {
		u.t.Fatalf("%s: %v", path, err)
	}
	want, err := real.GenerateTable(list, printers.GenerateOptions{Wide: true})
	if err != nil { // it has no columns of its own
		want, err = rest.NewDefaultTableConvertor(r).ConvertToTable(u.t.Context(), list, nil)
	}
	if err != nil {
		u.t.Fatalf("%s: %v", path, err)
	}
	b := must(json.Marshal(want))(u.t)
	var expected, got metav1.Table
	for into, from := range map[*metav1.Table][]byte{&expected: b, &got: get("application/json;as=Table;v=v1;g=meta.k8s.io")} {
		if err := json.Unmarshal(from, into); err != nil {
			u.t.Fatalf("%s: %v", path, err)
		}
	}
	if len(expected.Rows) == 0 {
		return "no object to compare"
	}
	// Leases are renewed meanwhile, and some descriptions are those of older versions of the kinds.
	return cmp.Diff(expected, got, cmpopts.IgnoreTypes(runtime.RawExtension{}, metav1.TypeMeta{}),
		cmpopts.IgnoreFields(metav1.ListMeta{}, "ResourceVersion"), cmpopts.IgnoreFields(metav1.TableColumnDefinition{}, "Description"))
}

// oddPods makes pods that no node fits, so that no kubelet touches them, in every state that a
// pod's row tells apart.
func (u *user) oddPods(c *kubernetes.Clientset) {
	u.t.Helper()
	always := corev1.ContainerRestartPolicyAlways
	started := true
	ended := func(code, signal int32, reason string) corev1.ContainerState {
		return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Signal: signal, Reason: reason}}
	}
	waits := func(reason string) corev1.ContainerState {
		return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}
	}
	runs := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	again := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: metav1.NewTime(time.Now().Add(-time.Hour))}}
	ready := []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}, {Type: "example.org/gate", Status: corev1.ConditionTrue}}
	for name, s := range map[string]corev1.PodStatus{
		"waits":         {Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{{Name: "a", State: waits("ImagePullBackOff")}}},
		"loops":         {Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{Name: "a", State: waits("CrashLoopBackOff"), RestartCount: 3, LastTerminationState: again}}},
		"done":          {Phase: corev1.PodSucceeded, ContainerStatuses: []corev1.ContainerStatus{{Name: "a", State: ended(0, 0, "Completed")}}},
		"failed":        {Phase: corev1.PodFailed, ContainerStatuses: []corev1.ContainerStatus{{Name: "a", State: ended(2, 0, "")}}},
		"killed":        {Phase: corev1.PodFailed, Reason: "Evicted", ContainerStatuses: []corev1.ContainerStatus{{Name: "a", State: ended(0, 9, "")}}},
		"evicted":       {Phase: corev1.PodFailed, Reason: "Evicted"},
		"half":          {Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{Name: "a", State: ended(0, 0, "Completed")}, {Name: "b", Ready: true, State: runs}}},
		"half-ready":    {Phase: corev1.PodRunning, Conditions: ready, ContainerStatuses: []corev1.ContainerStatus{{Name: "a", State: ended(0, 0, "Completed")}, {Name: "b", Ready: true, State: runs}}},
		"half-failed":   {Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{Name: "a", State: ended(0, 0, "Completed")}, {Name: "b", State: ended(1, 0, "Error")}}},
		"init":          {Phase: corev1.PodPending, InitContainerStatuses: []corev1.ContainerStatus{{Name: "i", State: runs}, {Name: "s", State: waits("PodInitializing")}}},
		"init-waits":    {Phase: corev1.PodPending, InitContainerStatuses: []corev1.ContainerStatus{{Name: "i", State: waits("ErrImagePull"), RestartCount: 1}}},
		"init-failed":   {Phase: corev1.PodPending, InitContainerStatuses: []corev1.ContainerStatus{{Name: "i", State: ended(3, 0, "")}}},
		"init-killed":   {Phase: corev1.PodPending, InitContainerStatuses: []corev1.ContainerStatus{{Name: "i", State: ended(0, 9, "")}, {Name: "s", State: ended(137, 9, "")}}},
		"init-error":    {Phase: corev1.PodPending, InitContainerStatuses: []corev1.ContainerStatus{{Name: "i", State: ended(1, 0, "Error")}}},
		"sidecar":       {Phase: corev1.PodRunning, InitContainerStatuses: []corev1.ContainerStatus{{Name: "i", State: ended(0, 0, ""), RestartCount: 7}, {Name: "s", Ready: true, Started: &started, State: runs, RestartCount: 2, LastTerminationState: again}}, ContainerStatuses: []corev1.ContainerStatus{{Name: "a", Ready: true, State: runs, RestartCount: 1}}},
		"gated":         {Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonSchedulingGated}}},
		"addressed":     {Phase: corev1.PodRunning, PodIP: "10.244.0.9", PodIPs: []corev1.PodIP{{IP: "10.244.0.9"}}, NominatedNodeName: "wk2", Conditions: ready},
		"leaving":       {Phase: corev1.PodRunning},
		"lost":          {Phase: corev1.PodRunning, Reason: "NodeLost"},
		"leaving-ended": {Phase: corev1.PodSucceeded},
	} {
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: []string{"example.org/stays"}},
			Spec: corev1.PodSpec{
				NodeSelector: map[string]string{"there": "is-none"}, Containers: []corev1.Container{{Name: "a", Image: "a"}, {Name: "b", Image: "b"}},
				InitContainers: []corev1.Container{{Name: "i", Image: "i"}, {Name: "s", Image: "s", RestartPolicy: &always}},
				ReadinessGates: []corev1.PodReadinessGate{{ConditionType: "example.org/gate"}, {ConditionType: "example.org/other"}},
			},
		}
		made := must(c.CoreV1().Pods("default").Create(u.t.Context(), p, metav1.CreateOptions{}))(u.t)
		made.ResourceVersion, made.Status = "", s
		must(c.CoreV1().Pods("default").UpdateStatus(u.t.Context(), made, metav1.UpdateOptions{}))(u.t)
		if strings.HasPrefix(name, "leaving") || name == "lost" {
			mustDo(u.t, c.CoreV1().Pods("default").Delete(u.t.Context(), name, metav1.DeleteOptions{}))
		}
	}
}

// schemas compares the models of the lab's OpenAPI documents with those that Kubernetes
// publishes, by what kubectl reads of them.
func (u *user) schemas() {
	out := must(exec.CommandContext(u.t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes").Output())(u.t)
	type document struct {
		Components struct{ Schemas map[string]map[string]any }
	}
	c := u.client()
	var index struct {
		Paths map[string]struct{ ServerRelativeURL string }
	}
	fetch := func(path string, into any) {
		u.t.Helper()
		at := must(url.Parse(path))(u.t)
		b, err := c.CoreV1().RESTClient().Get().AbsPath(at.Path).SetHeader("Accept", "application/json").DoRaw(u.t.Context())
		if err == nil {
			err = json.Unmarshal(b, into)
		}
		if err != nil {
			u.t.Fatalf("%s: %v", path, err)
		}
	}
	fetch("/openapi/v3", &index)
	for group, at := range index.Paths {
		var real, lab document
		fetch(at.ServerRelativeURL, &lab)
		b, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(out)), "api/openapi-spec/v3", strings.ReplaceAll(group, "/", "__")+"_openapi.json"))
		if err == nil {
			err = json.Unmarshal(b, &real)
		}
		mustDo(u.t, err)
		if len(lab.Components.Schemas) == 0 {
			u.t.Errorf("%s has no schemas", group)
		}
		for name, got := range lab.Components.Schemas {
			if diff := cmp.Diff(essence(real.Components.Schemas[name]), essence(got)); diff != "" {
				u.t.Errorf("%s: %s (-Kubernetes' +the lab's):\n%s", group, name, diff)
			}
		}
	}
}

// essence leaves out what the Go types do not say: see internal/sim/kubeapi/openapi. The words
// of descriptions are those of the same source, differently wrapped.
func essence(model any) any {
	switch m := model.(type) {
	case map[string]any:
		out := map[string]any{}
		for k, v := range m {
			switch k {
			case "description", "default", "enum", "x-kubernetes-list-type", "x-kubernetes-list-map-keys", "x-kubernetes-map-type", "x-kubernetes-unions":
				if _, isField := v.(map[string]any); !isField || k == "default" && len(v.(map[string]any)) == 0 {
					continue
				}
			}
			out[k] = essence(v)
		}
		return out
	case []any:
		out := []any{}
		for _, v := range m {
			out = append(out, essence(v))
		}
		return out
	}
	return model
}
