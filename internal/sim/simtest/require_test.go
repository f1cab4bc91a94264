package simtest

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/pipeline"
)

// require fails unless that holds; the text says what is so instead.
func require(t testing.TB, holds bool, text string, args ...any) {
	t.Helper()
	if !holds {
		t.Errorf(text, args...)
	}
}

// mustBe is require for what the rest of a test needs: it ends it.
func mustBe(t testing.TB, holds bool, text string, args ...any) {
	t.Helper()
	if !holds {
		t.Fatalf(text, args...)
	}
}

// requireNone fails if there is any.
func requireNone[T any](t testing.TB, found []T, what string) {
	t.Helper()
	if len(found) > 0 {
		t.Errorf("%s: %+v", what, found)
	}
}

// requireSame fails unless the values are equal; what says of what they are, and which of them is the wanted one.
func requireSame(t testing.TB, want, got any, what string, args ...any) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s:\n%s", fmt.Sprintf(what, args...), diff)
	}
}

// requireFault fails unless the error is of that kind, and it and its hints say all of these texts.
func requireFault(t testing.TB, err error, kind fault.Kind, says ...string) {
	t.Helper()
	all := message(err) + "\n" + strings.Join(fault.Hints(err), "\n")
	if err == nil || fault.KindOf(err) != kind {
		t.Errorf("kind %d, want %d: %s", fault.KindOf(err), kind, all)
	}
	for _, text := range says {
		if !strings.Contains(all, text) {
			t.Errorf("it does not say %q:\n%s", text, all)
		}
	}
}

// requireMessage fails unless the error is of that kind and has exactly this text.
func requireMessage(t *testing.T, err error, kind fault.Kind, want string) {
	t.Helper()
	if fault.KindOf(err) != kind || message(err) != want {
		t.Errorf("kind %d, want %d: %v\nwant %s", fault.KindOf(err), kind, err, want)
	}
}

// requireRefused fails unless the error is a refusal whose message has this text.
func requireRefused(t testing.TB, err error, text string) {
	t.Helper()
	if fault.KindOf(err) != fault.Refused || !strings.Contains(err.Error(), text) {
		t.Errorf("err = %v (kind %d), want it refused: %s", err, fault.KindOf(err), text)
	}
}

// requireError fails unless there is an error, and it and its hints say all of these texts.
func requireError(t testing.TB, err error, says ...string) {
	t.Helper()
	requireFault(t, err, fault.KindOf(err), says...)
}

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// requireInSync fails unless drift finds these nodes stale and no other, and every persistent disk is intact.
func requireInSync(t *testing.T, lab *Lab, stale ...string) {
	t.Helper()
	requireDrift(t, lab, stale...)
	lab.RequireIntact()
}

func requireDrift(t *testing.T, lab *Lab, stale ...string) pipeline.DriftResult {
	t.Helper()
	res, err := lab.Client().Drift(t.Context())
	must(t, err)
	var got []string
	for _, d := range res.Nodes {
		if d.Stale {
			got = append(got, d.Node)
		}
	}
	if strings.Join(got, " ") != strings.Join(stale, " ") || res.Unread > 0 {
		t.Fatalf("stale %q, want %q: %+v", got, stale, res.Nodes)
	}
	return res
}

// requireEtcd fails the test if etcd was used in a way that may lose it.
func (l *Lab) requireEtcd() {
	l.t.Helper()
	for _, v := range l.EtcdViolations() {
		l.t.Errorf("etcd: %s", v)
	}
}

// sent are the calls since one that a test looks for.
func (l *Lab) sent(from int, is func(record.Call) bool) []record.Call {
	return slices.DeleteFunc(l.Recorder.Calls()[from:], func(c record.Call) bool { return !is(c) })
}

// requireNothingSent fails if something was changed since a call, but for the claim and by those protocols.
func (l *Lab) requireNothingSent(from int, but ...string) {
	l.t.Helper()
	for _, c := range l.sent(from, func(c record.Call) bool { return c.Mutation && !ofClaim(c) && !slices.Contains(but, c.Proto) }) {
		l.t.Errorf("%s %s %s was sent all the same", c.Proto, c.Method, c.Path)
	}
}

// plan is what a roll would do now.
func (l *Lab) plan(policy planning.Policy) planning.Plan {
	l.t.Helper()
	plan, err := l.Client().Plan(l.t.Context(), policy)
	must(l.t, err)
	return plan
}

func (l *Lab) status() pipeline.StatusResult {
	l.t.Helper()
	res, err := l.Client().Status(l.t.Context())
	must(l.t, err)
	return res
}

func (l *Lab) drift() pipeline.DriftResult {
	l.t.Helper()
	res, err := l.Client().Drift(l.t.Context())
	must(l.t, err)
	return res
}

// session is a connected client, which the caller ends.
func (l *Lab) session() *session {
	l.t.Helper()
	s, err := l.Client().connect(l.t.Context())
	must(l.t, err)
	return s
}

// kubeNode is a node in Kubernetes.
func (l *Lab) kubeNode(name string) *corev1.Node {
	l.t.Helper()
	node, err := l.Kube.Node(l.t.Context(), name)
	must(l.t, err)
	return node
}

// stored is an object in Kubernetes.
func (l *Lab) stored(r schema.GroupVersionResource, namespace, name string) store.Object {
	l.t.Helper()
	o, err := l.Kube.Store().Get(l.t.Context(), r, namespace, name)
	must(l.t, err)
	return o
}

// allStored are the objects of a kind in Kubernetes.
func (l *Lab) allStored(r schema.GroupVersionResource, namespace string) []store.Object {
	l.t.Helper()
	all, _, err := l.Kube.Store().List(l.t.Context(), r, namespace)
	must(l.t, err)
	return all
}

// mustRoll is a roll that has to succeed.
func (c *Client) mustRoll(policy planning.Policy) pipeline.Report {
	c.lab.t.Helper()
	rep, err := c.Roll(c.lab.t.Context(), policy)
	must(c.lab.t, err)
	return rep
}

func readFile(t testing.TB, name string) []byte {
	t.Helper()
	content, err := os.ReadFile(name)
	must(t, err)
	return content
}
