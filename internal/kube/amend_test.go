package kube_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/kubeapi"
	"github.com/recast-sh/recast/internal/sim/record"
)

// TestCordonSurvivesFaults: the effect of a change with a lost answer is seen at
// the next look, and what is missing is then done.
func TestCordonSurvivesFaults(t *testing.T) {
	t.Parallel()
	first := func(act func()) func(record.Call) {
		struck := false
		return func(c record.Call) {
			if c.Method == http.MethodPatch && !struck {
				struck = true
				act()
			}
		}
	}
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
	for name, strike := range map[string]func(*lab){
		"the answer is lost": func(l *lab) { l.calls.Hooks(nil, first(func() { panic(http.ErrAbortHandler) })) },
		"the change is lost": func(l *lab) {
			strikes := 0
			l.calls.Hooks(func(c record.Call) error {
				if c.Method != http.MethodPatch {
					return nil
				}
				if strikes++; strikes > 1 {
					return nil
				}
				return errors.New("connection reset by peer")
			}, nil)
		},
		"a server's error":  answer(http.StatusInternalServerError),
		"too many requests": answer(http.StatusTooManyRequests),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := newLab(t, "wk1")
				time.Sleep(10 * time.Second)
				strike(l)
				if err := l.client(t, "system:masters").Cordon(t.Context(), "wk1", mark("r2")); err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(cordoned{true, ours}, l.cordon(t)); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			})
		})
	}
}

// TestCordonGivesUp: at once if waiting cannot help, else within its minute.
func TestCordonGivesUp(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		strike func(*lab)
		within time.Duration
		text   string
		hints  int
	}{
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
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := newLab(t, "wk1")
				time.Sleep(10 * time.Second)
				client := l.client(t, "system:masters")
				c.strike(l)
				start := time.Now()
				err := client.Cordon(t.Context(), "wk1", mark("r2"))
				if err == nil || !strings.Contains(err.Error(), c.text) || len(fault.Hints(err)) != c.hints {
					t.Errorf("%v, hints %q", err, fault.Hints(err))
				}
				if took := time.Since(start); took > c.within {
					t.Errorf("took %s", took)
				}
				if l.cordon(t).Unschedulable {
					t.Error("it is cordoned")
				}
			})
		})
	}
}
