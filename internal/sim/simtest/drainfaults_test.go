package simtest

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/kubeapi"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
)

// atDrain is the moment of faults during a drain.
const atDrain = "drain"

// drainFaults are the faults for each strategy.
func drainFaults(s cluster.Strategy) map[string]*talosFault {
	all := map[string]*talosFault{}
	for _, rows := range []map[string]*talosFault{faultsOfBudgets(), faultsOfAdmission(s), faultsOfPods(), faultsOfTheAPI(s), faultsOfVolumes(s)} {
		maps.Copy(all, rows)
	}
	drain := map[cluster.Strategy]string{cluster.Recreate: "take-down/drain", cluster.InPlace: "upgrade/drain"}
	for _, f := range all {
		f.strategy = s
		if len(f.roll) == 0 {
			f.roll = []string{"drain: {timeout: 1m}"}
		}
		if f.at == atDrain {
			f.at = drain[s]
		}
		f.spares = true
	}
	return all
}

type machineState struct {
	Config map[string]string
	Boot   string
}

// machineState is the machine's state that a failed drain must not change.
func (s *talosScene) machineState() machineState {
	s.t.Helper()
	n := s.rolled()
	vm, err := s.World.LookupVM(n.Host, n.VMID)
	must(s.t, err)
	c := s.session()
	defer c.end()
	m, err := cluster.ReadMachine(s.t.Context(), c.machines.Talos, n.Addr)
	must(s.t, err)
	return machineState{Config: maps.Clone(vm.Config), Boot: m.BootID}
}

// TestDrainFaults plays each fault in its own world, for a node that is recreated and for
// one that is upgraded in place: the roll says which pod or volume blocks it and why, the
// VM is not touched before all are gone, and after the fault the same command ends in
// sync.
func TestDrainFaults(t *testing.T) {
	faults := 0
	for _, strategy := range []cluster.Strategy{cluster.Recreate, cluster.InPlace} {
		for name, f := range drainFaults(strategy) {
			if testing.Short() && !(f.short && strategy == cluster.Recreate) {
				continue
			}
			faults++
			t.Run(string(strategy)+"/"+name, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, f.run)
			})
		}
	}
	t.Attr("drain-faults", fmt.Sprint(faults))
}

const deleteAfter = "drain: {timeout: 1m, onTimeout: delete}"

// faultsOfBudgets: a PodDisruptionBudget does not allow an eviction.
func faultsOfBudgets() map[string]*talosFault {
	const needs = "PodDisruptionBudget default/shop needs 1 healthy pods and has 1 currently"
	const two = "PodDisruptionBudgets default/shop and default/shop-too cover it, and Kubernetes evicts no pod that more than one covers"
	return map[string]*talosFault{
		"a budget that never allows it": {
			short: true, first: inTurn(deployed(shop), budgeted("shop")), mends: unbudgeted("shop"),
			says:   []string{"drain node wk1: gave up after 1m0s; last seen: pods left: default/shop-", "(" + needs + ")", "give the workload a replica to spare or loosen its budget", "roll.drain.onTimeout: delete deletes what is left after roll.drain.timeout (1m0s)"},
			stands: untouched,
		},
		"a budget that never allows it, and deletion after that": {
			roll: []string{deleteAfter}, first: inTurn(deployed(shop), budgeted("shop")),
			noted: "which was refused for 1m0s (roll.drain.onTimeout: delete): " + needs, stands: untouched,
		},
		"a budget that allows it after a while": {
			first: inTurn(deployed(shop), budgeted("shop")), at: atDrain, begins: meanwhile(20*time.Second, unbudgeted("shop")),
			noted: "can't go yet: Cannot evict pod as it would violate the pod's disruption budget. The disruption budget shop needs 1 healthy pods and has 1 currently", stands: untouched,
		},
		"two budgets for one pod": {
			first: inTurn(deployed(shop), budgeted("shop"), budgeted("shop-too")), mends: inTurn(unbudgeted("shop"), unbudgeted("shop-too")),
			says: []string{two, "change the PodDisruptionBudgets so that only one covers a pod"}, noted: "This pod has more than one PodDisruptionBudget", stands: untouched,
		},
	}
}

// leftCordoned is the state of a running node that could not be uncordoned.
func leftCordoned(s cluster.Strategy) string {
	if s == cluster.InPlace {
		return "on, cordoned"
	}
	return isOut // by its record, which errs on the safe side
}

// faultsOfAdmission: webhooks decide on evictions too.
func faultsOfAdmission(s cluster.Strategy) map[string]*talosFault {
	const denied = `admission webhook "hours.example.com" denied the request: not during trading hours`
	return map[string]*talosFault{
		"a webhook that denies it": {
			first: inTurn(deployed(shop), hooked("pods/eviction")), mends: unhooked,
			says: []string{"default/shop-", "(" + denied + ")", "change the webhook or policy that denies it to allow the eviction"}, noted: "can't go yet: " + denied, stands: untouched,
		},
		"a webhook that denies every deletion, too": {
			roll: []string{deleteAfter}, first: inTurn(deployed(shop), hooked("pods/eviction", "pods")), mends: unhooked,
			says: []string{"gave up after 1m0s", denied}, noted: "deleting pod default/shop-", stands: untouched,
		},
		"evictions that the user may not make": {
			first: inTurn(deployed(shop), asUserWithout("pods/eviction")), kind: fault.Refused,
			says:   []string{`User "admin" cannot create resource "pods/eviction" in API group "" in the namespace`, "the kubeconfig's user needs to read nodes"},
			stands: untouched,
		},
		"a kubeconfig that expires meanwhile": {
			first: inTurn(deployed(shop), budgeted("shop")), begins: expiringKubeconfig(50 * time.Second), mends: unbudgeted("shop"),
			says: []string{"does not accept the kubeconfig's credentials: Unauthorized", "is left cordoned: run the same command again to continue from there"}, stands: leftCordoned(s),
		},
		"a namespace that is being terminated": {
			first: deployed(stubborn, inNamespace("old")), at: atDrain, begins: dropped(store.Namespaces(), "", "old"),
			noted: "unable to create new content in namespace old because it is being terminated", stands: untouched,
		},
	}
}

// faultsOfPods: pods that do not end, or must not be evicted.
func faultsOfPods() map[string]*talosFault {
	const lost = "no controller would bring these pods back: default/bare"
	return map[string]*talosFault{
		"a pod that ignores SIGTERM": {first: deployed(stubborn), noted: "pod default/shop-", stands: untouched},
		"a pod with a finalizer": {
			first: deployed(guarded), mends: unguarded,
			says: []string{"default/shop-", "(still terminating, waiting for finalizers example.com/guard)", "whoever set the finalizers of a pod has to remove them"}, stands: untouched,
		},
		"a pod without a controller": {first: bare, mends: gone("bare"), kind: fault.Refused, says: []string{lost, "set roll.drain.force: true"}, stands: untouched},
		"a pod without a controller, by force": {
			roll: []string{"drain: {timeout: 1m, force: true}"}, first: bare, noted: "pod default/bare is gone", stands: untouched,
		},
		"a pod without a controller that comes meanwhile": {
			first: inTurn(deployed(shop), budgeted("shop")), at: atDrain, begins: meanwhile(20*time.Second, bare), mends: inTurn(gone("bare"), unbudgeted("shop")),
			kind: fault.Refused, says: []string{lost}, stands: untouched,
		},
		"a StatefulSet whose pod comes back elsewhere": {o: twoWorkers, first: stateful, noted: "pod default/db-0 is gone", stands: untouched},
		"a kubelet that is dead": {
			first: deployed(shop), at: atDrain, begins: kubeletDies, mends: rebooted,
			says:   []string{"default/shop-", "(still terminating, its grace period was over ", "its node is not Ready: its kubelet does not answer", "talosctl -n wk1 service kubelet"},
			stands: untouched,
		},
	}
}

// faultsOfTheAPI: Kubernetes does not answer, or the Node is gone.
func faultsOfTheAPI(s cluster.Strategy) map[string]*talosFault {
	return map[string]*talosFault{
		"an API that is away for a while": {first: deployed(stubborn), at: atDrain, begins: inTurn(meanwhile(10*time.Second, apiAway), meanwhile(25*time.Second, apiBack)), noted: "no answer from https://127.42.7.", stands: untouched},
		"an API that is away for good": {
			first: inTurn(deployed(shop), budgeted("shop")), at: atDrain, begins: meanwhile(20*time.Second, apiAway), mends: unbudgeted("shop"),
			says:   []string{"gave up after 1m0s", "no answer from https://127.42.7.", "before that: pods left: default/shop-", "is left cordoned: run the same command again to continue from there"},
			stands: leftCordoned(s),
		},
		"a Node that someone deletes": {
			first: inTurn(deployed(shop), budgeted("shop")), at: atDrain, begins: meanwhile(20*time.Second, forgotten("wk1")), mends: inTurn(rebooted, unbudgeted("shop")),
			kind: fault.Refused, says: []string{"Kubernetes has no node wk1 any more", "talosctl -n wk1 service kubelet restart"}, stands: untouched,
		},
		"a Node that someone uncordons": {
			first: inTurn(deployed(shop), budgeted("shop")), at: atDrain, begins: meanwhile(20*time.Second, func(s *talosScene) { s.Cordon("wk1", false) }), mends: unbudgeted("shop"),
			kind: fault.Refused, says: []string{"node wk1 is schedulable: someone has uncordoned it meanwhile"}, stands: untouched,
		},
	}
}

// faultsOfVolumes: pods' volumes are not detached. A machine that is upgraded in place
// keeps its disks, including those of pods.
func faultsOfVolumes(s cluster.Strategy) map[string]*talosFault {
	hangs := &talosFault{
		first: podDisk, mends: inTurn(podDiskGone, podDiskFreed), kind: fault.Refused, stands: untouched,
		says: []string{"disks of pods to leave VM 9031: gave up after ", "still there: scsi7 (fast:9999/vm-9999-pvc-0b5f.raw)", "qm set 9031 --delete KEY"},
	}
	if s == cluster.InPlace {
		hangs = &talosFault{first: podDisk, stands: untouched}
	}
	return map[string]*talosFault{
		"a disk of a pod that stays on the VM": hangs,
		"a disk of a pod that leaves the VM late": {
			first: podDisk, at: atDrain, begins: meanwhile(20*time.Second, podDiskGone), mends: podDiskFreed, stands: untouched,
		},
		"a volume of a pod that the drain leaves": {first: agent, stands: untouched},
		"a volume that is never detached": {
			first: attached, mends: dropped(store.Attachments(), "", "stuck"),
			says: []string{
				"volumes of wk1 detached: gave up after 1m0s", "still attached: PersistentVolume pv-1 (claim default/data, driver csi.example.com) can't be detached: rpc error: code = Internal desc = disk is busy",
				"nothing of VM 9031 was touched",
			},
			stands: untouched,
		},
	}
}

// hooked has a webhook that denies changes of these resources.
func hooked(resources ...string) func(*talosScene) {
	return func(s *talosScene) {
		s.Kube.SetWebhook("hours.example.com", func(r kubeapi.Request) *metav1.Status {
			for _, resource := range resources {
				if r.Resource == resource && (r.Verb == "delete" || r.Resource == "pods/eviction") && r.Namespace == corev1.NamespaceDefault {
					return &metav1.Status{Code: http.StatusForbidden, Message: "not during trading hours", Reason: metav1.StatusReasonForbidden}
				}
			}
			return nil
		})
	}
}

func unhooked(s *talosScene) { s.Kube.SetWebhook("", nil) }

// TestCtrlCInADrain interrupts a roll while a pod is terminating. It leaves a cordoned,
// complete node, from which the next roll continues; it evicts only the remaining pods.
func TestCtrlCInADrain(t *testing.T) {
	long(t)
	type story struct {
		strategy   cluster.Strategy
		at, stands string
	}
	eachInLab(t, oneWorker(), storiesOf(story{cluster.Recreate, "take-down/drain", isOut}, story{cluster.InPlace, "upgrade/drain", "on, cordoned"}), func(t *testing.T, lab *Lab, c story) {
		s := &talosScene{talosFault: &talosFault{rolls: "wk1", strategy: c.strategy}, t: t, Lab: lab}
		s.setRoll("strategy: " + string(c.strategy))
		deployed(stubborn)(s)
		lab.Patch(everywhere)
		was, members := s.machineState(), s.memberIDs()
		ctx, cancel := context.WithCancel(t.Context())
		client := s.as(firstRun)
		client.Emit = whenStarted(c.at, func() { time.AfterFunc(10*time.Second, cancel) })
		if err := client.roll(s.only())(ctx); err == nil || ctx.Err() == nil {
			t.Fatalf("err = %v", err)
		}
		if got := s.stand(); got != c.stands {
			t.Errorf("wk1: %s, want %s", got, c.stands)
		}
		if now := s.machineState(); now.Boot != was.Boot {
			t.Error("the machine was rebooted")
		}
		time.Sleep(time.Minute)
		must(t, s.as(secondRun).roll(s.only())(t.Context()))
		s.requireWell(members)
	})
}

// toRack labels a Node as a person would.
func (l *Lab) toRack(name, rack string) {
	l.t.Helper()
	node := l.kubeNode(name)
	node.Labels["rack"] = rack
	must(l.t, errOf(l.Kube.Store().Update(l.t.Context(), store.Nodes(), node, store.Main)))
}

// TestMetadataOfTheSameNode: a person's changes of a Node during its roll are kept; a new
// Node of that name gets the old one's metadata.
func TestMetadataOfTheSameNode(t *testing.T) {
	long(t)
	type story struct {
		meanwhile func(*talosScene)
		rack      string
	}
	eachInLab(t, oneWorker(), map[string]story{
		"someone moves it to another rack": {func(s *talosScene) { s.toRack("wk1", "b") }, "b"},
		"someone deletes it":               {forgotten("wk1"), "a"},
	}, func(t *testing.T, lab *Lab, c story) {
		s := &talosScene{talosFault: &talosFault{rolls: "wk1"}, t: t, Lab: lab}
		lab.toRack("wk1", "a")
		lab.Patch(everywhere)
		client := s.as(firstRun)
		client.Emit = whenStarted("bring-up/start", func() { c.meanwhile(s) })
		must(t, client.roll(s.only())(t.Context()))
		node := lab.kubeNode("wk1")
		if got := node.Labels["rack"]; got != c.rack {
			t.Errorf("rack %q, want %q", got, c.rack)
		}
	})
}
