package simtest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/kubeapi"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/pipeline/checkup"
)

// unanswered has no change of the setting arrive.
func unanswered(l *Lab) { l.dropsCalls(patchOfWait) }

// dropsCalls has no request to that server's path and method arrive.
func (l *Lab) dropsCalls(server string) {
	l.Recorder.Hooks(func(c record.Call) error {
		if (moment{server: server}).isCall(c) {
			return errors.New("connection reset by peer")
		}
		return nil
	}, nil)
}

// mayAll gives recast a kubeconfig that may do everything that a function allows.
func (l *Lab) mayAll(allowed func(kubeapi.Request) bool) {
	l.Kube.Grant("recast", allowed)
	b, err := l.Kubeconfig("recast", time.Hour)
	must(l.t, err)
	l.Write("kubeconfig", b)
}

// refusedHold is a storage system that can't be told to wait.
type refusedHold struct {
	strike func(l *Lab)
	want   string
	doctor string
}

// refusedHolds rolls with each of them: the node is not touched, and nothing is set; doctor names the right before.
func refusedHolds(t *testing.T, in inLabOf, system string, set func(*Lab) string, cases map[string]refusedHold) {
	t.Helper()
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, lab *Lab) {
				tc.strike(lab)
				was := set(lab)
				if tc.doctor != "" {
					requireStorageCheck(t, lab, system, checkup.Problem, tc.doctor)
				}
				err := lab.Client().roll(onlyWorker)(t.Context())
				requireFault(t, err, fault.Refused, tc.want)
				lab.Recorder.Hooks(nil, nil)
				requireDrift(t, lab, "wk1", "wk2", "wk3")
				requireSame(t, was, set(lab), "what it was told (-before +after)")
				lab.requireServing("wk1")
				requireNoClaim(t, lab)
			})
		})
	}
}

// TestHoldIsRefused: if the setting can't be changed, the node is not touched; doctor names the right before.
func TestHoldIsRefused(t *testing.T) {
	long(t)
	set := func(l *Lab) string { return fmt.Sprint(l.waits()) }
	refusedHolds(t, inImpatientLab, "Longhorn", set, map[string]refusedHold{
		"no answer": {unanswered, "hold back the rebuild of Longhorn for wk1: gave up after 1m0s", ""},
		"no right": {func(l *Lab) {
			l.mayAll(func(r kubeapi.Request) bool { return r.Verb != "patch" || r.Resource != "settings" })
		}, `cannot patch resource "settings"`, "the kubeconfig may not patch settings of longhorn.io"},
		"an annotation that recast does not know": {func(l *Lab) {
			l.setWaits("60", `{"was":"{}","set":"60","nodes":{"wk3":60}}`)
		}, `annotation recast.dev/hold of Longhorn's setting ` + waitSetting + ` is not as recast writes it`, ""},
	})
}

// TestHoldStaysWhileTheNodeIsOut: a run that is interrupted gives nothing back for the node that it leaves out; the
// one that finishes it does, and so does recover.
func TestHoldStaysWhileTheNodeIsOut(t *testing.T) {
	long(t)
	for name, do := range map[string]deed{
		"roll":    rolls(onlyWorker),
		"recover": func(ctx context.Context, c *Client) error { return errOf(c.Recover(ctx, "wk1")) },
	} {
		t.Run(name, func(t *testing.T) {
			inImpatientLab(t, func(t *testing.T, lab *Lab) {
				ctx, interrupt := context.WithCancel(t.Context())
				defer interrupt()
				c := lab.Client()
				c.Emit = whenStarted("wk1/bring-up/start", interrupt)
				err := c.roll(onlyWorker)(ctx)
				mustBe(t, err != nil, "it was interrupted")
				requireNoClaim(t, lab)
				lab.requireWaits("480", `{"was":"30","set":"480","nodes":{"wk1":480}}`)
				must(t, do(t.Context(), lab.second()))
				lab.requireWaits("30", "")
				requireNoClaim(t, lab)
			})
		})
	}
}

// TestHoldEndsWithoutControllers: Longhorn's manager does not come back, so the volumes don't become whole; what was
// set is given back nevertheless.
func TestHoldEndsWithoutControllers(t *testing.T) {
	long(t)
	inImpatientLab(t, func(t *testing.T, lab *Lab) {
		lab.Replace("recast.yaml", "try: 40s}", "try: 40s, storage: 2m}")
		c := lab.Client()
		c.Emit = whenStarted("wk1/await-storage-again", func() { without(store.DaemonSets(), longhornSpace, "longhorn-manager")(lab) })
		err := c.roll(planning.Policy{})(t.Context())
		requireFault(t, err, fault.Failed, "last seen: Longhorn: there is no DaemonSet longhorn-system/longhorn-manager")
		lab.requireWaits("30", "")
		requireDrift(t, lab, "wk2", "wk3")
	})
}

// TestHoldIsLeft: if Kubernetes does not answer when the setting is to be given back, the roll says so and fails;
// the next one gives it back.
func TestHoldIsLeft(t *testing.T) {
	long(t)
	inImpatientLab(t, func(t *testing.T, lab *Lab) {
		c := lab.Client()
		c.Emit = whenStarted("wk1/await-storage-again", func() { unanswered(lab) })
		err := c.roll(onlyWorker)(t.Context())
		requireFault(t, err, fault.Failed, "give back what storage systems were told")
		requireSays(t, strings.Join(fault.Hints(err), "\n"), "by hand: kubectl --namespace longhorn-system patch")
		lab.Recorder.Hooks(nil, nil)
		v, _ := lab.waits()
		require(t, v == "480", "it is %s", v)
		requireNoClaim(t, lab)
		time.Sleep(time.Minute)
		must(t, lab.second().roll(onlyWorker)(t.Context()))
		lab.requireWaits("30", "")
	})
}
