package simtest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/kubeapi"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/pipeline/checkup"
)

const (
	waitSetting = "replica-replenishment-wait-interval"
	patchOfWait = "settings/" + waitSetting + " " + http.MethodPatch
)

// waits is how long Longhorn is told to wait, and what recast remembers of that.
func (l *Lab) waits() (value, memo string) {
	l.t.Helper()
	u := l.stored(longhornSettings.GroupVersionResource, longhornSpace, waitSetting).(*unstructured.Unstructured)
	value, _, _ = unstructured.NestedString(u.Object, "value")
	return value, setBy.ReplaceAllString(u.GetAnnotations()["recast.dev/hold"], "")
}

// setBy is when, and by which run, a setting was changed.
var setBy = regexp.MustCompile(`,"run":"[^"]+","since":"20[^"]+Z"`)

func (l *Lab) requireWaits(value, memo string) {
	l.t.Helper()
	v, m := l.waits()
	require(l.t, v == value && m == memo, "%s is %s, held: %s", waitSetting, v, m)
}

// setWaits changes the setting besides recast; memo "" leaves what is remembered.
func (l *Lab) setWaits(value, memo string) {
	l.t.Helper()
	u := l.stored(longhornSettings.GroupVersionResource, longhornSpace, waitSetting).(*unstructured.Unstructured).DeepCopy()
	u.Object["value"] = value
	if memo != "" {
		u.SetAnnotations(map[string]string{"recast.dev/hold": memo})
	}
	must(l.t, errOf(l.Kube.Store().Update(l.t.Context(), longhornSettings.GroupVersionResource, u, store.Main)))
}

func (l *Lab) replicasOn(volume string) (nodes []string) {
	l.t.Helper()
	for _, o := range l.allStored(longhornReplicas.GroupVersionResource, "") {
		spec := o.(*unstructured.Unstructured).Object["spec"].(map[string]any)
		if spec["volumeName"] == volume {
			nodes = append(nodes, spec["nodeID"].(string))
		}
	}
	slices.Sort(nodes)
	return nodes
}

// inImpatientLab has volume pvc-1 on wk1 and wk2, a third worker that could take a replica, and a Longhorn that
// waits less for one than a node is away.
func inImpatientLab(t *testing.T, test func(t *testing.T, lab *Lab)) {
	t.Helper()
	inStorageLab(t, (*Lab).runLonghorn, 3, func(t *testing.T, lab *Lab) {
		lab.isImpatient()
		test(t, lab)
	})
}

// inLabOf runs a test in a lab with a storage system, as inImpatientLab does.
type inLabOf = func(t *testing.T, test func(t *testing.T, lab *Lab))

func eachInLabOf[S any](t *testing.T, in inLabOf, stories map[string]S, f played[S]) {
	t.Helper()
	for name, story := range stories {
		t.Run(name, func(t *testing.T) { in(t, func(t *testing.T, lab *Lab) { f(t, lab, story) }) })
	}
}

func (l *Lab) isImpatient() {
	l.t.Helper()
	l.longhornSetting(waitSetting, "30")
	l.replicated("pvc-1", 2, "wk1", "wk2")
}

// TestRollHoldsTheRebuild: while a node is away that has replicas, Longhorn waits longer than it would, so that it
// makes no other replica; then it waits as before.
func TestRollHoldsTheRebuild(t *testing.T) {
	long(t)
	type story struct{ strategy, set string }
	stories := storiesOf(story{"recreate", "480"}, story{"in-place", "240"})
	eachInLabOf(t, inImpatientLab, stories, func(t *testing.T, lab *Lab, s story) {
		lab.setRoll("strategy: " + s.strategy)
		set := s.set
		var said []string
		looked := 0
		looks := func(at, value, memo string) func(step.Event) {
			return whenStarted(at, func() {
				looked++
				lab.requireWaits(value, memo)
			})
		}
		held := func(node string) string {
			return `{"was":"30","set":"` + set + `","nodes":{"` + node + `":` + set + `}}`
		}
		lab.Client().hears(allOf(
			notes("await-storage", &said), looks("wk1/gate", set, held("wk1")),
			looks("wk2/await-storage-again", set, held("wk2")), looks("wk3/gate", "30", ""),
		)).rollTo(t, planning.Policy{})
		lab.requireWaits("30", "")
		requireSame(t, []string{"wk1", "wk2"}, lab.replicasOn("pvc-1"), "replicas (-want +got)")
		require(t, looked == 3, "looked %d times", looked)
		require(t, slices.Contains(said, waitSetting+" of Longhorn is "+set+" instead of 30"), "said %q", said)
	})
}

// TestRebuildWithoutHold: without it, this Longhorn makes another replica while the node is away.
func TestRebuildWithoutHold(t *testing.T) {
	long(t)
	inImpatientLab(t, func(t *testing.T, lab *Lab) {
		lab.setRoll("storage: off")
		must(t, lab.Client().roll(onlyWorker)(t.Context()))
		requireSame(t, []string{"wk1", "wk2", "wk3"}, lab.replicasOn("pvc-1"), "replicas (-want +got)")
		lab.requireWaits("30", "")
	})
}

// TestHoldOfAKilledRun: wherever a run is killed between the setting and its end, the next roll gives back exactly
// what was there, and so does recover.
func TestHoldOfAKilledRun(t *testing.T) {
	long(t)
	moments := []moment{
		{server: patchOfWait, unsent: true},
		onServer(patchOfWait), after("wk1/await-storage"), before("wk1/take-down"), before("wk1/take-down/drain"),
		before("wk1/take-down/delete-vm"), before("wk1/bring-up/start"), before("finish/uncordon"), before("wk1/await-storage-again"), after("wk1/await-storage-again"),
	}
	var left atomic.Int32
	goOnAfterKills(t, inImpatientLab, moments, func(t *testing.T, lab *Lab, _ moment) {
		if v, _ := lab.waits(); v != "30" {
			left.Add(1)
		}
	}, func(_ *testing.T, lab *Lab) { lab.requireWaits("30", "") })
	t.Cleanup(func() {
		want := 3 * (len(moments) - 2) // the first one set nothing, and the last one was done
		require(t, int(left.Load()) == want || t.Failed(), "%d of %d kills left something set", left.Load(), want)
	})
}

// goOnAfterKills kills a roll of wk1 at each of the moments, and goes on in each of three ways: by the same roll, by a
// recover, by a roll of another node.
func goOnAfterKills(t *testing.T, in inLabOf, moments []moment, killed func(*testing.T, *Lab, moment), end func(*testing.T, *Lab)) {
	t.Helper()
	for _, m := range moments {
		for _, way := range []string{"roll", "recover", "another node"} {
			t.Run(m.String()+", then "+way, func(t *testing.T) {
				in(t, func(t *testing.T, lab *Lab) {
					lab.Client().rollKilled(m, onlyWorker)
					killed(t, lab, m)
					next := lab.second()
					switch way {
					case "roll":
						next.rollTo(t, onlyWorker, "wk2", "wk3")
					case "recover":
						_, err := next.Recover(t.Context(), "wk1")
						if err != nil && fault.KindOf(err) != fault.Refused { // nothing was begun, or it is done
							t.Fatal(err)
						}
					case "another node":
						must(t, next.roll(policyFor("wk3"))(t.Context()))
					}
					end(t, lab)
					requireNoClaim(t, lab)
				})
			})
		}
	}
}

// TestLeftHold: what an earlier run could not give back is seen by the plan and by status; any roll gives it back,
// also one that has nothing to do, and so does a recover that refuses.
func TestLeftHold(t *testing.T) {
	long(t)
	const memo = `{"was":"600","set":"1800","nodes":{"wk1":1800}}`
	ways := map[string]deed{
		"roll with nothing to do": roll,
		"recover": func(ctx context.Context, c *Client) error {
			_, err := c.Recover(ctx, "wk1")
			if fault.KindOf(err) != fault.Refused {
				return errors.Join(errors.New("it is not refused"), err)
			}
			return nil
		},
	}
	eachInLab(t, sim.Options{Workers: 2}, ways, func(t *testing.T, lab *Lab, do deed) {
		lab.runLonghorn("wk1", "wk2")
		lab.setWaits("1800", memo)
		plan := lab.plan(planning.Policy{})
		const held = "Longhorn: " + waitSetting + " was 600 before recast set it to 1800, while wk1 is away"
		require(t, len(plan.Storage) == 1 && plan.Storage[0].Held == held && plan.Storage[0].WaitSeconds == 600,
			"planned %+v", plan.Storage)
		status := lab.status()
		require(t, len(status.Held) == 1 && status.Held[0].What == held && len(status.Held[0].Next) == 2,
			"status %+v", status.Held)
		requireStorageCheck(t, lab, "Longhorn", checkup.Warning, waitSetting+" was 600 before recast set it to 1800, while wk1 is away")
		must(t, do(t.Context(), lab.Client()))
		lab.requireWaits("600", "")
		requireNoClaim(t, lab)
	})
}

// requireStorageCheck requires that line of doctor about Longhorn.
func requireStorageCheck(t *testing.T, lab *Lab, system string, state checkup.State, seen string) {
	t.Helper()
	checks := diagnosis(t, lab.Client()).Checks
	if !slices.ContainsFunc(checks, func(c checkup.Check) bool { return c.What == system && c.State == state && c.Seen == seen }) {
		checks = slices.DeleteFunc(checks, func(c checkup.Check) bool { return c.What != system })
		t.Errorf("no %s %q in %+v", state, seen, checks)
	}
}

// TestDoctorOfLonghorn: doctor says how long it waits, and what becomes of that.
func TestDoctorOfLonghorn(t *testing.T) {
	const waits = "1 volume; waits %s for a node that is away (" + waitSetting + ")"
	type story struct {
		change func(l *Lab)
		state  checkup.State
		seen   string
	}
	eachInLabOf(t, inImpatientLab, map[string]story{
		"long enough": {func(l *Lab) { l.longhornSetting(waitSetting, "600") }, checkup.OK, fmt.Sprintf(waits, "10m0s")},
		"less":        {func(*Lab) {}, checkup.OK, fmt.Sprintf(waits, "30s") + ", and wk1 is expected to be away for 4m0s: a roll has it wait 8m0s"},
		"not at all":  {func(l *Lab) { l.longhornSetting(waitSetting, "0") }, checkup.OK, fmt.Sprintf(waits, "0s") + ", and wk1 is expected to be away for 4m0s: a roll has it wait 8m0s"},
		"controllers away": {
			func(l *Lab) { without(store.DaemonSets(), longhornSpace, "longhorn-manager")(l) },
			checkup.Problem, "there is no DaemonSet longhorn-system/longhorn-manager",
		},
	}, func(t *testing.T, lab *Lab, s story) {
		s.change(lab)
		requireStorageCheck(t, lab, "Longhorn", s.state, s.seen)
	})
}

// A value that a person sets while the node is away stays, and nothing is remembered any more.
func TestHoldChangedBySomeoneElse(t *testing.T) {
	long(t)
	inImpatientLab(t, func(t *testing.T, lab *Lab) {
		var said []string
		lab.Client().hears(allOf(
			notes("await-storage-again", &said), whenStarted("wk1/take-down", func() { lab.setWaits("1000", "") }),
		)).mustRoll(onlyWorker)
		lab.requireWaits("1000", "")
		require(t, slices.Contains(said, waitSetting+" of Longhorn stays 1000: someone else has set that"), "said %q", said)
	})
}

// TestHoldOfTwoWorkersAtATime: both need it, and it ends with the last one.
func TestHoldOfTwoWorkersAtATime(t *testing.T) {
	long(t)
	inStorageLab(t, (*Lab).runLonghorn, 4, func(t *testing.T, lab *Lab) {
		lab.setRoll("canary: false", "maxUnavailable: {workers: 2, perHost: 2}")
		lab.longhornSetting(waitSetting, "30")
		lab.replicated("pvc-1", 2, "wk1", "wk3")
		lab.replicated("pvc-2", 2, "wk2", "wk4")
		most := 0
		c := lab.Client().hears(func(step.Event) {
			_, memo := lab.waits()
			most = max(most, strings.Count(memo, `"wk`))
		})
		must(t, c.roll(policyFor("wk1", "wk2"))(t.Context()))
		require(t, most == 2, "held for %d at a time", most)
		lab.requireWaits("30", "")
		requireSame(t, []string{"wk1", "wk3"}, lab.replicasOn("pvc-1"), "replicas (-want +got)")
		requireSame(t, []string{"wk2", "wk4"}, lab.replicasOn("pvc-2"), "replicas (-want +got)")
	})
}

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
	eachInLabOf(t, in, cases, func(t *testing.T, lab *Lab, tc refusedHold) {
		tc.strike(lab)
		was := set(lab)
		if tc.doctor != "" {
			requireStorageCheck(t, lab, system, checkup.Problem, tc.doctor)
		}
		requireFault(t, lab.Client().roll(onlyWorker)(t.Context()), fault.Refused, tc.want)
		lab.Recorder.Hooks(nil, nil)
		requireDrift(t, lab, "wk1", "wk2", "wk3")
		requireSame(t, was, set(lab), "what it was told (-before +after)")
		lab.requireServing("wk1")
		requireNoClaim(t, lab)
	})
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
	ways := map[string]leaveFunc{"roll": byRoll, "recover": byRecover}
	eachInLabOf(t, inImpatientLab, ways, func(t *testing.T, lab *Lab, do leaveFunc) {
		ctx, interrupt := context.WithCancel(t.Context())
		defer interrupt()
		err := lab.Client().hears(whenStarted("wk1/bring-up/start", interrupt)).roll(onlyWorker)(ctx)
		mustBe(t, err != nil, "it was interrupted")
		requireNoClaim(t, lab)
		lab.requireWaits("480", `{"was":"30","set":"480","nodes":{"wk1":480}}`)
		must(t, errOf(do(t.Context(), lab.second())))
		lab.requireWaits("30", "")
		requireNoClaim(t, lab)
	})
}

// Longhorn's manager does not come back, so the volumes don't become whole; what was set is given back nevertheless.
func TestHoldEndsWithoutControllers(t *testing.T) {
	long(t)
	inImpatientLab(t, func(t *testing.T, lab *Lab) {
		lab.Replace("recast.yaml", "try: 40s}", "try: 40s, storage: 2m}")
		gone := without(store.DaemonSets(), longhornSpace, "longhorn-manager")
		c := lab.Client().hears(whenStarted("wk1/await-storage-again", func() { gone(lab) }))
		requireFault(t, c.roll(planning.Policy{})(t.Context()), fault.Failed, "last seen: Longhorn: there is no DaemonSet longhorn-system/longhorn-manager")
		lab.requireWaits("30", "")
		requireDrift(t, lab, "wk2", "wk3")
	})
}

// TestHoldIsLeft: if Kubernetes does not answer when the setting is to be given back, the roll says so and fails;
// the next one gives it back.
func TestHoldIsLeft(t *testing.T) {
	long(t)
	inImpatientLab(t, func(t *testing.T, lab *Lab) {
		c := lab.Client().hears(whenStarted("wk1/await-storage-again", func() { unanswered(lab) }))
		err := c.roll(onlyWorker)(t.Context())
		requireFault(t, err, fault.Failed, "give back what storage systems were told",
			"by hand: kubectl --namespace longhorn-system patch")
		lab.Recorder.Hooks(nil, nil)
		v, _ := lab.waits()
		require(t, v == "480", "it is %s", v)
		requireNoClaim(t, lab)
		time.Sleep(time.Minute)
		must(t, lab.second().roll(onlyWorker)(t.Context()))
		lab.requireWaits("30", "")
	})
}
