package kube_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/kube"
	"github.com/recast-sh/recast/internal/sim/kubeapi"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/sim/record"
)

const rollAnnotation = "recast.dev/roll"

func mark(run string) cluster.Mark {
	return cluster.Mark{Run: run, Strategy: cluster.Recreate, Build: "3f2a", BootID: "boot-1-wk1"}
}

// cordoned is what people can see of a cordon.
type cordoned struct {
	Unschedulable bool
	Mark          string
}

func (l *lab) cordon(t *testing.T) cordoned {
	t.Helper()
	n := must.Get(l.Node(t.Context(), "wk1"))(t)
	return cordoned{n.Spec.Unschedulable, n.Annotations[rollAnnotation]}
}

const (
	ours    = `{"run":"r2","strategy":"recreate","build":"3f2a","boot":"boot-1-wk1"}`
	foreign = `{"run":"r2","strategy":"recreate","build":"3f2a","boot":"boot-1-wk1","foreign":true}`
)

func TestCordonAndUncordon(t *testing.T) {
	t.Parallel()
	type row struct {
		before cordoned
		why    cluster.Mark
		during cordoned
		writes int // of Cordon
		after  cordoned
	}
	cases := map[string]row{
		"uncordoned":          {why: mark("r2"), during: cordoned{true, ours}, writes: 1},
		"someone else's":      {cordoned{true, ""}, mark("r2"), cordoned{true, foreign}, 1, cordoned{true, ""}},
		"ours of this run":    {cordoned{true, ours}, mark("r2"), cordoned{true, ours}, 0, cordoned{}},
		"ours of another run": {cordoned{true, `{"run":"r1"}`}, mark("r2"), cordoned{true, ours}, 1, cordoned{}},
		"foreign in another run": {
			cordoned{true, `{"run":"r1","foreign":true}`}, mark("r2"), cordoned{true, foreign}, 1, cordoned{true, ""},
		},
		"foreign, and lifted since": {cordoned{false, `{"run":"r1","foreign":true}`}, mark("r2"), cordoned{true, ours}, 1, cordoned{}},
		"ours, and lifted since":    {cordoned{false, ours}, mark("r2"), cordoned{true, ours}, 1, cordoned{}},
		"remembered as foreign": {
			cordoned{},
			cluster.Mark{Run: "r2", Strategy: cluster.Recreate, Build: "3f2a", BootID: "boot-1-wk1", Foreign: true},
			cordoned{true, foreign},
			1,
			cordoned{true, ""},
		},
	}
	must.Bubbles(t, cases, func(t *testing.T, tc row) {
		l := upLab(t, "wk1")
		l.change(t, "wk1", func(n *corev1.Node) {
			n.Spec.Unschedulable = tc.before.Unschedulable
			if tc.before.Mark != "" {
				n.Annotations[rollAnnotation] = tc.before.Mark
			}
		})
		c := l.client(t, "system:masters")
		must.Do(t, c.Cordon(t.Context(), "wk1", tc.why))
		must.Equal(t, "cordoned", tc.during, l.cordon(t))
		must.Equal(t, "cordon took writes", tc.writes, l.calls.Mutations())
		for range 2 { // the second has nothing to do
			must.Do(t, c.Uncordon(t.Context(), "wk1"))
		}
		must.Equal(t, "uncordoned", tc.after, l.cordon(t))
		must.Equal(t, "cordon and uncordon took writes", tc.writes+1, l.calls.Mutations())
	})
}

func TestUncordonLeavesACordonWithoutMark(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		l := upLab(t, "wk1")
		l.change(t, "wk1", func(n *corev1.Node) { n.Spec.Unschedulable = true })
		must.Do(t, l.client(t, "system:masters").Uncordon(t.Context(), "wk1"))
		must.Equal(t, "cordon", cordoned{true, ""}, l.cordon(t))
	})
}

// Someone cordons the node between our read and our write: that cordon must not count as ours.
func TestCordonSeesWhoWasFaster(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		l := upLab(t, "wk1")
		tries := 0
		l.calls.Hooks(func(call record.Call) error {
			if call.Method == http.MethodPatch {
				if tries++; tries == 1 {
					l.change(t, "wk1", func(n *corev1.Node) { n.Spec.Unschedulable = true })
				}
			}
			return nil
		}, nil)
		must.Do(t, l.client(t, "system:masters").Cordon(t.Context(), "wk1", mark("r2")))
		must.Equal(t, "cordon", cordoned{true, foreign}, l.cordon(t))
		must.Equal(t, "tries", 2, tries)
	})
}

func TestCordonGivesUpOnANodeThatNeverRests(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		l := upLab(t, "wk1")
		l.calls.Hooks(func(call record.Call) error {
			if call.Method == http.MethodPatch {
				l.change(t, "wk1", func(n *corev1.Node) { n.Labels["at"] = time.Now().Format("150405") })
			}
			return nil
		}, nil)
		err := l.client(t, "system:masters").Cordon(t.Context(), "wk1", mark("r2"))
		must.Fail(t, err, "changed by someone else meanwhile")
		must.Equal(t, "cordoned despite the error", false, l.cordon(t).Unschedulable)
	})
}

func TestMarksOutliveTheMachine(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		l := upLab(t, "wk1")
		c := l.client(t, "system:masters")
		must.Do(t, c.Cordon(t.Context(), "wk1", mark("r2")))
		must.Do(t, c.SetFailedBuild(t.Context(), "wk1", "9c41"))
		l.NodeDown(node("wk1", 0).UUID)
		time.Sleep(time.Minute)
		again := node("wk1", 0)
		again.BootID = "boot-2-wk1"
		l.NodeUp(again)
		time.Sleep(10 * time.Second)
		nodes, err := c.Nodes(t.Context())
		if err != nil || len(nodes) != 1 {
			t.Fatalf("nodes = %v, %v", nodes, err)
		}
		type view struct {
			BootID, FailedBuild string
			Unschedulable       bool
			Mark                *cluster.Mark
		}
		want := view{"boot-2-wk1", "9c41", true, new(mark("r2"))}
		must.Equal(t, "node after its reboot", want, view{nodes[0].BootID, nodes[0].FailedBuild, nodes[0].Unschedulable, nodes[0].Mark})
		metadata := cluster.NodeMetadata{Annotations: map[string]string{rollAnnotation: "{}"}}
		must.Do(t, c.RestoreMetadata(t.Context(), "wk1", metadata))
		must.Equal(t, "after RestoreMetadata", cordoned{true, ours}, l.cordon(t))
	})
}

func TestSetFailedBuild(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		l := upLab(t, "wk1")
		c := l.client(t, "system:masters")
		type view struct {
			Build  string
			There  bool
			Writes int
		}
		var got []view
		for _, build := range []string{"", "b1", "b1", "b2", "", ""} {
			must.Do(t, c.SetFailedBuild(t.Context(), "wk1", build))
			n := must.Get(l.Node(t.Context(), "wk1"))(t)
			is, there := n.Annotations["recast.dev/failed-build"]
			got = append(got, view{is, there, l.calls.Mutations()})
		}
		want := []view{{"", false, 0}, {"b1", true, 1}, {"b1", true, 1}, {"b2", true, 2}, {"", false, 3}, {"", false, 3}}
		must.Equal(t, "got", want, got)
	})
}

func TestAMarkThatCannotBeReadStopsEverything(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"yes", "", "{}", `{"run":7}`, "null"} {
		t.Run(text, func(t *testing.T) {
			must.Bubble(t, func(t *testing.T) {
				l := upLab(t, "wk1")
				l.change(t, "wk1", func(n *corev1.Node) { n.Annotations[rollAnnotation] = text })
				c := l.client(t, "system:masters")
				_, nodesErr := c.Nodes(t.Context())
				for what, err := range map[string]error{
					"Nodes": nodesErr, "Cordon": c.Cordon(t.Context(), "wk1", mark("r2")), "Uncordon": c.Uncordon(t.Context(), "wk1"),
				} {
					if err == nil || !strings.Contains(err.Error(), "annotation recast.dev/roll of node wk1") || len(fault.Hints(err)) != 1 {
						t.Errorf("%s: %v, hints %q", what, err, fault.Hints(err))
					}
				}
				must.Equal(t, "writes", 0, l.calls.Mutations())
			})
		})
	}
}

func TestMarksOfAMissingNode(t *testing.T) {
	t.Parallel()
	must.Bubbles(t, map[string]func(c *kube.Client, t *testing.T) error{
		"cordon":       func(c *kube.Client, t *testing.T) error { return c.Cordon(t.Context(), "wk9", mark("r2")) },
		"uncordon":     func(c *kube.Client, t *testing.T) error { return c.Uncordon(t.Context(), "wk9") },
		"failed build": func(c *kube.Client, t *testing.T) error { return c.SetFailedBuild(t.Context(), "wk9", "b") },
		"booted":       func(c *kube.Client, t *testing.T) error { return c.SetBooted(t.Context(), "wk9", cluster.Booted{}) },
	}, func(t *testing.T, f func(c *kube.Client, t *testing.T) error) {
		l := newLab(t, "wk1")
		must.FailIs(t, f(l.client(t, "system:masters"), t), cluster.ErrNotFound)
	})
}

// TestCordonSurvivesFaults: the effect of a change with a lost answer is seen at
// the next look, and what is missing is then done.
func TestCordonSurvivesFaults(t *testing.T) {
	t.Parallel()
	answer := func(code int32) func(*lab) {
		return func(l *lab) {
			struck := false
			l.SetWebhook("etcd.example.com", func(r kubeapi.Request) *metav1.Status {
				if r.Resource != "nodes" || struck {
					return nil
				}
				struck = true
				return &metav1.Status{Code: code, Message: "etcdserver: request timed out"}
			})
		}
	}
	must.Bubbles(t, map[string]func(*lab){
		"the answer is lost": (*lab).loseAnswer,
		"the change is lost": (*lab).loseChange,
		"a server's error":   answer(http.StatusInternalServerError),
		"too many requests":  answer(http.StatusTooManyRequests),
	}, func(t *testing.T, strike func(*lab)) {
		l := upLab(t, "wk1")
		strike(l)
		must.Do(t, l.client(t, "system:masters").Cordon(t.Context(), "wk1", mark("r2")))
		must.Equal(t, "cordon", cordoned{true, ours}, l.cordon(t))
	})
}

// TestCordonGivesUp: at once if waiting cannot help, else within its minute.
func TestCordonGivesUp(t *testing.T) {
	t.Parallel()
	type row struct {
		strike func(*lab)
		within time.Duration
		text   string
		hints  int
	}
	must.Bubbles(t, map[string]row{
		"it is denied": {
			func(l *lab) {
				l.SetWebhook("hours.example.com", func(r kubeapi.Request) *metav1.Status {
					return &metav1.Status{Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden, Message: "not during trading hours"}
				})
			}, time.Second, "not during trading hours", 1,
		},
		"the API is unavailable": {
			func(l *lab) {
				l.calls.Hooks(func(record.Call) error { return errors.New("connection reset by peer") }, nil)
			},
			62 * time.Second, "cordon node wk1: gave up after 1m0s; last seen: no answer from https://127.42.7.10:6443", 1,
		},
	}, func(t *testing.T, c row) {
		l := upLab(t, "wk1")
		client := l.client(t, "system:masters")
		c.strike(l)
		start := time.Now()
		err := client.Cordon(t.Context(), "wk1", mark("r2"))
		if err == nil || !strings.Contains(err.Error(), c.text) || len(fault.Hints(err)) != c.hints {
			t.Errorf("%v, hints %q", err, fault.Hints(err))
		}
		must.Take(t, start, 0, c.within)
		must.Equal(t, "cordoned", false, l.cordon(t).Unschedulable)
	})
}
