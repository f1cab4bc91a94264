package simtest

import (
	"maps"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
	"github.com/recast-sh/recast/internal/sim/talosapi"
)

// The states of a node after a failed roll.
const untouched, isOut, isOff = "on", "on, its old disk parked, cordoned", "off, its old disk parked, cordoned"

var (
	threePlanes = sim.Options{ControlPlanes: 3, Workers: 1}
	twoWorkers  = sim.Options{ControlPlanes: 1, Workers: 2}
	unattended  = sim.Options{TalosVersion: "v1.14.1"} // installs by its own document
)

// fiveHours is a hardware clock that is set to local time.
var fiveHours = talosapi.Trouble{Clock: 5 * time.Hour}

func talosFaults() map[string]*talosFault {
	return joined(faultsOfBoots(), faultsOfNames(), faultsOfInstalls(), faultsInPlace(), normalTroubles())
}

func joined(tables ...map[string]*talosFault) map[string]*talosFault {
	all := map[string]*talosFault{}
	for _, rows := range tables {
		maps.Copy(all, rows)
	}
	return all
}

// faultsOfBoots are of what the machine boots, of who answers, and of whether either side trusts the other.
func faultsOfBoots() map[string]*talosFault {
	return map[string]*talosFault{
		"the boot ISO is that of the old version": {
			o: sim.Options{TalosVersion: "v1.12.6"}, begins: oldISO, mends: freshISO,
			kind: fault.Refused, says: []string{"it booted v1.12.6 with schematic", "wanted is v1.13.9", "delete it from the Proxmox storage, then recast publish"}, stands: isOff,
		},
		"its VM is switched off while it is drained": {
			first: deployed(stubborn), at: atDrain, begins: meanwhile(5*time.Second, switchedOff), mends: switchedOn,
			says:   []string{`VM 9031 "wk1" on pve1 is switched off: drain node wk1: gave up after 10m0s`, `start VM 9031 "wk1" on pve1 in Proxmox`},
			stands: "off",
		},
		"the boot ISO is another build": {
			begins: inTurn(published, (*talosScene).SwapISOs), mends: (*talosScene).SwapISOs,
			kind: fault.Refused, code: fault.NoBoot, stands: isOff,
			says: []string{"VM 9031 was stopped before anything was applied", "it booted v1.13.9 with schematic", "scsi0 (the old system disk) parked on VM "},
		},
		"the maintenance API never comes": {
			at: "bring-up/start", begins: troubled(talosapi.Trouble{Unplugged: true}), mends: inTurn(troubled(talosapi.Trouble{}), switchedOff),
			says: []string{"wk1 in maintenance mode: gave up after 2m0s", "look at the console of VM 9031"}, stands: isOut,
		},
		"it halts because META is on another disk": {
			at: "bring-up/start", begins: alien, mends: inTurn(switchedOff, unplugged),
			says: []string{"wk1 in maintenance mode: gave up after 2m0s", "its installation was cut off, or one of the other disks has a META partition"}, stands: isOut,
		},
		"the installed image loops": {
			at: "bring-up/start", begins: breakImage(talosapi.Loops), remedy: (*talosScene).recovered,
			says: []string{"wk1 healthy for 2s: gave up after 3m2s", "the console of VM 9031", "recast undo wk1"}, stands: isOut,
		},
		"a control plane's image hangs": {
			o: threePlanes, rolls: "cp2", at: "bring-up/start", begins: breakImage(talosapi.Hangs), remedy: (*talosScene).recovered,
			says: []string{"cp2 healthy for 2s: gave up after 3m2s", "it is not a member of etcd", "recast undo cp2"}, stands: isOut,
		},
		"another machine has its address": {
			o: twoWorkers, at: "bring-up/start", begins: led("wk2"), mends: straight,
			says: []string{"it asked for a certificate", "another machine has that address"}, stands: isOut,
		},
		"another machine has its address, and a certificate for it": {
			o: twoWorkers, first: certified("127.42.7.31", "wk2"), at: "bring-up/start", begins: led("wk2"), mends: straight,
			kind: fault.Refused, says: []string{"127.42.7.31 answers with UUID 5ec0ffee-0000-4000-8000-000000009032, not", "another machine has the address of wk1"}, stands: isOut,
		},
		"another machine has its address when it is to leave etcd": {
			o: threePlanes, rolls: "cp1", first: certified("127.42.7.11", "cp2"), at: "take-down/leave-etcd", begins: led("cp2"), mends: straight,
			kind: fault.Refused, says: []string{"127.42.7.11 answers with UUID 5ec0ffee-0000-4000-8000-000000009002, not", "another machine has the address of cp1"}, stands: untouched,
		},
		"the talosconfig has expired": {
			begins: inTurn(expiring(time.Minute), later),
			kind:   fault.Config, says: []string{"its certificate expired on 2000-01-01", "talosctl config new"}, stands: untouched,
		},
		"the talosconfig expires meanwhile": {
			begins: expiring(70 * time.Second), kind: fault.Config,
			says: []string{"its certificate expired on 2000-01-01"}, stands: isOut,
		},
		"its clock is ahead": {
			o: threePlanes, rolls: "cp2", at: "bring-up/start", begins: troubled(fiveHours), mends: troubled(talosapi.Trouble{}),
			says: []string{"its clock or ours is wrong", "x509: certificate has expired or is not yet valid: current time 2000-01-01T00:0", "is before 2000-01-01T05:0", "recast undo cp2"}, stands: isOut,
		},
		"its certificate has run out": {
			o: threePlanes, rolls: "cp2", at: "bring-up/start", begins: troubled(talosapi.Trouble{Clock: -30 * time.Hour}), mends: troubled(talosapi.Trouble{}),
			says: []string{"its clock or ours is wrong", "is after 1999-12-31T18:0", "recast undo cp2"}, stands: isOut,
		},
		"our certificate is not valid by its clock": {
			at: "bring-up/start", begins: troubled(talosapi.Trouble{Clock: -30 * 365 * 24 * time.Hour}), mends: troubled(talosapi.Trouble{}),
			says: []string{"our certificate is expired or not yet valid by its clock", "remote error: tls: expired certificate"}, stands: isOut,
		},
		"its clock is not set": {
			at: "bring-up/start", begins: troubled(fiveHours), mends: troubled(talosapi.Trouble{}),
			says: []string{"time: time is not synced", "recast undo wk1"}, stands: isOut,
		},
		"its certificate has run out before the roll": {
			o: threePlanes, rolls: "cp2", begins: inTurn(troubled(talosapi.Trouble{Clock: -30 * time.Hour}), rebooted), mends: inTurn(troubled(talosapi.Trouble{}), later),
			says: []string{"a plan needs every node's answer: node cp2", "is after 1999-12-31T18:0", "compare the machine's clock with this computer's"}, stands: untouched,
		},
	}
}

// faultsOfInstalls are of whether the machine installs Talos, and becomes a member of etcd again.
func faultsOfInstalls() map[string]*talosFault {
	down, up := talosapi.EtcdFault{Down: true}, talosapi.EtcdFault{}
	return map[string]*talosFault{
		"the machine rejects the configuration": {
			at: "bring-up/start", begins: troubled(talosapi.Trouble{Refuses: "unknown keys found during decoding:\nmachine:\n    features:\n        whatIsNew: true\n"}), mends: troubled(talosapi.Trouble{}),
			kind: fault.Refused, says: []string{"the machine rejects the configuration: unknown keys: machine.features.whatIsNew", "recast undo wk1"}, stands: isOut,
		},
		"its disks show no serials when it is configured": {
			call: "ApplyConfiguration", begins: troubled(talosapi.Trouble{Nameless: true}), mends: troubled(talosapi.Trouble{}),
			kind: fault.Refused, says: []string{"the machine rejects the configuration: v1alpha1.Config: no disks matched the expression"}, stands: isOut,
		},
		"its disks show no serials when it installs": {
			o: unattended, call: "ApplyConfiguration", begins: troubled(talosapi.Trouble{Nameless: true}), mends: troubled(talosapi.Trouble{}),
			says: []string{"stage running, not ready: services: kubelet not running, installation pending: no disk matched the selector"}, stands: isOut,
		},
		"the installer is not found": {
			begins: breakImage(talosapi.Unpullable), mends: breakImage(talosapi.Sound),
			kind: fault.Refused, says: []string{"wk1 can't fetch the installer 127.0.0.1:8080/nocloud-installer/", ": not found", "nothing was taken down"}, stands: untouched,
		},
		"the node has no room for the installer": {
			begins: troubled(talosapi.Trouble{Full: true}), mends: troubled(talosapi.Trouble{}),
			kind: fault.Refused, says: []string{"wk1 can't fetch the installer", "no space left on device", "have room for the image"}, stands: untouched,
		},
		"the installer goes meanwhile": {
			first: patient, at: "bring-up/start", begins: breakImage(talosapi.Unpullable), mends: breakImage(talosapi.Sound),
			says: []string{"wk1 is in maintenance mode again: it could not install Talos from 127.0.0.1:8080/nocloud-installer/", "run the same command again to apply the configuration again"}, stands: isOut,
		},
		"the installer goes meanwhile, and is asked for again and again": {
			at: "bring-up/start", begins: breakImage(talosapi.Unauthorized), mends: breakImage(talosapi.Sound),
			says: []string{"last seen: stage installing: context", "talosctl -n 127.42.7.31 dmesg say more"}, stands: isOut,
		},
		"the installer goes meanwhile, unattended": {
			o: unattended, first: patient, at: "bring-up/start", begins: breakImage(talosapi.Unpullable), mends: breakImage(talosapi.Sound),
			says: []string{"stage installing, not ready: services: kubelet not running"}, stands: isOut,
		},
		"a half installation halts": {
			at: "bring-up/start", begins: breakImage(talosapi.InstallerFails), mends: breakImage(talosapi.Sound),
			says: []string{"no route to host", "the console of VM 9031", "recast roll waits for it again; recast undo wk1"}, stands: isOut,
		},
		"a half installation runs from the ISO": {
			o: unattended, at: "bring-up/start", begins: breakImage(talosapi.InstallerFails), mends: breakImage(talosapi.Sound), remedy: (*talosScene).recovered,
			says: []string{"it runs from its boot ISO still, not from its new disk", "it can't boot from its new disk, on which an installation broke off; recast undo wk1"}, stands: isOut,
		},
		"a half-installed control plane runs from the ISO": {
			o: sim.Options{ControlPlanes: 3, Workers: 1, TalosVersion: "v1.14.1"}, rolls: "cp2",
			at: "bring-up/start", begins: breakImage(talosapi.InstallerFails), mends: breakImage(talosapi.Sound), remedy: (*talosScene).recovered,
			says: []string{"it runs from its boot ISO still, not from its new disk", "recast undo cp2"}, stands: isOut,
		},
		"its etcd does not rejoin": {
			o: threePlanes, rolls: "cp2", at: "bring-up/start", begins: breakEtcd(down, "cp2"), mends: breakEtcd(up, "cp2"),
			says: []string{"stage booting, not ready: services: etcd not running", "it is not a member of etcd yet", "recast undo cp2"}, stands: isOut,
		},
		"it stays a learner": {
			o: threePlanes, rolls: "cp2", at: "bring-up/start", begins: breakEtcd(talosapi.EtcdFault{Learner: true}, "cp2"), mends: breakEtcd(up, "cp2"),
			says: []string{"its etcd member is a learner still", "recast undo cp2"}, stands: isOut,
		},
		"it starts again while it is a learner": {
			o: threePlanes, rolls: "cp2", at: "bring-up/start", begins: breakEtcd(talosapi.EtcdFault{Learner: true}, "cp2"), mends: inTurn(restarted, breakEtcd(up, "cp2"), later), remedy: joinedAnew,
			says: []string{"its etcd member is a learner still", "talosctl reset -n 127.42.7.12 --graceful=false --reboot --system-labels-to-wipe EPHEMERAL"}, stands: isOut,
		},
		"etcd loses its leader meanwhile": {
			o: threePlanes, rolls: "cp2", at: "bring-up/start", begins: breakEtcd(down, "cp1"), mends: breakEtcd(up, "cp1"),
			says: []string{"cp2 healthy for 2s: gave up", "ask cp1 for the members of etcd", "no control plane says who the members of etcd are"}, stands: isOut,
		},
		"etcd loses a member before it leaves": {
			o: threePlanes, rolls: "cp2", at: "take-down/leave-etcd", begins: breakEtcd(down, "cp1"), mends: inTurn(breakEtcd(up, "cp1"), later),
			kind: fault.Refused, says: []string{"etcd must be healthy for cp2 to leave it: cp1 does not answer", "bring the other members back first"}, stands: untouched,
		},
	}
}

// faultsInPlace: those of upgrades in place alone.
func faultsInPlace() map[string]*talosFault {
	rows := map[string]*talosFault{
		"it comes back as the old version": {
			o: sim.Options{TalosVersion: "v1.12.6"}, first: newVersion, begins: breakInstaller(talosapi.RollsBack), mends: breakInstaller(talosapi.Sound), remedy: recreated, parks: true,
			says: []string{"it came back as its old system: Talos v1.12.6 → v1.13.9", "talosctl -n 127.42.7.31 dmesg shows why", "not tried in place on it again"}, stands: untouched,
		},
		"it comes back as another build": {
			at: "upgrade/reboot", begins: installedBy("cp1"),
			says: []string{"it came back neither as its old system nor as the one that was installed: ", "someone else has installed a system on it meanwhile", "recast roll continues"}, stands: untouched,
		},
		"the new image loops": {
			roll: []string{"bootFailure: stop"}, begins: breakImage(talosapi.Loops), mends: inTurn(breakImage(talosapi.Sound), switchedOff, poweredOn),
			says: []string{"wk1 did not come back from its upgrade", "gave up after 5m2s", "look at its console in Proxmox: the boot menu has the previous entry"}, stands: "on, cordoned",
		},
		"the new image hangs": {
			roll: []string{"bootFailure: reimage"}, first: published, begins: breakImage(talosapi.Hangs), remedy: (*talosScene).again, parks: true,
			says: []string{"wk1 did not come back from its upgrade", "it was reimaged and runs build", "the disk with the system that does not boot is parked"}, stands: untouched,
		},
		"the new image never gets ready": {
			begins: breakImage(talosapi.Unready), remedy: (*talosScene).again,
			says: []string{"wk1 did not come back from its upgrade", "stage booting, not ready: services: kubelet not running", "and was rolled back", "not tried in place on it again"}, stands: untouched,
		},
		"someone has installed another build": {
			begins: inTurn(published, installedBy("cp1")), mends: rebooted,
			kind: fault.Refused, says: []string{"talos-v1.13.9~1.efi is installed and waits for a reboot", "reboot it first, or use recreate or reimage"}, stands: untouched,
		},
		"the talosconfig expires while it reboots": {
			roll: []string{"bootFailure: reimage"}, first: published, begins: expiring(45 * time.Second),
			kind: fault.Config, says: []string{"its certificate expired on 2000-01-01", "talosctl config new"}, stands: "on, cordoned",
		},
		"only we do not reach the new system": {
			roll: []string{"bootFailure: reimage"}, first: published, at: "wait-healthy", begins: led("cp1"), mends: straight,
			says: []string{"and it can't be asked to roll back", "Kubernetes has node wk1 Ready after a reboot, so nothing is done to it"}, stands: "on, cordoned",
		},
		"a control plane comes back without etcd": {
			o: threePlanes, rolls: "cp2", roll: []string{"bootFailure: stop"}, at: "upgrade/reboot",
			begins: breakEtcd(talosapi.EtcdFault{Down: true}, "cp2"), mends: breakEtcd(talosapi.EtcdFault{}, "cp2"),
			says: []string{"stage booting, not ready: services: etcd not running", "etcd: cp2 does not answer"}, stands: "on, cordoned",
		},
		"another control plane loses etcd meanwhile": {
			o: threePlanes, rolls: "cp2", at: "upgrade/reboot", begins: breakEtcd(talosapi.EtcdFault{Down: true}, "cp3"), mends: breakEtcd(talosapi.EtcdFault{}, "cp3"),
			says: []string{"cp2 did not come back from its upgrade", "and it is not asked to boot its previous system: etcd would not survive losing cp2: cp3 does not answer"}, stands: "on, cordoned",
		},
		"the installer fails": {
			begins: breakImage(talosapi.InstallerFails), mends: breakImage(talosapi.Sound),
			says: []string{"failed to copy boot assets: input/output error", "wk1 still runs its old system and takes pods again"}, stands: untouched,
		},
	}
	for _, f := range rows {
		f.strategy = cluster.InPlace
	}
	return rows
}

// normalTroubles only look like faults. A rebooting machine's API is half dead for a
// while: the watch may outlast that, so the user need not see it.
func normalTroubles() map[string]*talosFault {
	return map[string]*talosFault{
		"a half-dead API while it reboots":           {stands: untouched},
		"a half-dead API while it reboots, in place": {strategy: cluster.InPlace, stands: untouched},
		"a half-dead API while it reboots, in place with the old API": {
			o: sim.Options{TalosVersion: "v1.12.6"}, strategy: cluster.InPlace, stands: untouched,
		},
		"a half-dead API while it reboots, reimaged":      {strategy: cluster.Reimage, o: threePlanes, rolls: "cp2", stands: untouched},
		"a half-dead API while it reboots, unattended":    {o: unattended, stands: untouched},
		"someone has installed a build and not booted it": {begins: inTurn(published, installedBy("cp1")), stands: untouched},
		"the endpoint is an address that moves": {
			o: threePlanes, rolls: "cp2", first: virtualEndpoint, at: "take-down/stop", begins: func(s *talosScene) { s.lead(virtual, "cp3") }, stands: untouched,
		},
	}
}

// faultsOfNames: another machine takes the node's name, or the node another, before recast uses the name.
func faultsOfNames() map[string]*talosFault {
	const (
		another = "Kubernetes has UUID 5ec0ffee-0000-4000-8000-000000009032 for node wk1, whose VM 9031 has 5ec0ffee-0000-4000-8000-000000009031: two machines have its name"
		whose   = `it is the machine of VM 9032 "wk2" on pve1`
		remedy  = "give every machine a hostname of its own"
	)
	var (
		taken    = renamed("wk2", "wk2", "wk1")
		given    = renamed("wk2", "wk1", "wk2")
		twoAndWk = sim.Options{ControlPlanes: 3, Workers: 2}
	)
	rows := map[string]*talosFault{
		"two nodes have its hostname": {
			begins: taken,
			says:   []string{`node wk1: its UUID 5ec0ffee-0000-4000-8000-000000009032 belongs to VM 9032 "wk2" on pve1, not to VM 9031`, "has that VM's machine been given the hostname of wk1?"}, stands: untouched,
		},
		"two nodes have its hostname when it is to be drained":           {short: true, at: "take-down/drain", begins: taken, says: []string{another, whose, remedy}, stands: untouched},
		"two nodes have its hostname when it is to be configured":        {at: "bring-up/start", begins: taken, mends: inTurn(given, forgotten("wk1")), says: []string{another, whose, remedy}, stands: isOut},
		"two nodes have its hostname when it is to take pods":            {at: "finish/uncordon", begins: taken, says: []string{another, whose, remedy}, stands: isOut},
		"two nodes have its hostname when it is to be drained, in place": {strategy: cluster.InPlace, at: "upgrade/drain", begins: taken, says: []string{another, whose, remedy}, stands: untouched},
		"two nodes have its hostname when it is to take pods, in place":  {strategy: cluster.InPlace, at: "finish/uncordon", begins: taken, says: []string{another, whose, remedy}, stands: "on, cordoned"},
		"it is given another hostname when it is to be drained":          {at: "take-down/drain", begins: renamed("wk1", "wk1", "wk9"), mends: inTurn(renamed("wk1", "wk9", "wk1"), forgotten("wk9")), says: []string{"the machine of wk1 is node wk9 now", "see who has changed its hostname"}, stands: untouched},
		"another machine takes its hostname before it leaves etcd":       {o: twoAndWk, rolls: "cp2", at: "take-down/leave-etcd", begins: usurped, mends: restored, says: []string{"for node cp2, whose VM 9002 has", "is named cp2, but runs on 127.42.7.32", whose, remedy}, stands: untouched},
		"another machine takes its hostname when it is to be configured": {o: twoAndWk, rolls: "cp2", at: "bring-up/start", begins: usurped, mends: inTurn(restored, forgotten("cp2")), says: []string{"for node cp2, whose VM 9002 has", whose, remedy}, stands: isOut},
		"another machine takes its member of etcd, but has no kubelet":   {o: twoAndWk, rolls: "cp2", at: "bring-up/start", begins: inTurn(usurped, unnoticed), mends: restored, says: []string{"is named cp2, but runs on 127.42.7.32, which has UUID 5ec0ffee-0000-4000-8000-000000009032: another machine has its name", whose, remedy}, stands: "on, its old disk parked"},
	}
	for _, f := range rows {
		f.kind = fault.Refused
		if f.o.ControlPlanes == 0 {
			f.o = twoWorkers
		}
		if f.mends == nil {
			f.mends = given
		}
	}
	return rows
}

const atDrain = "drain"

var drainSteps = map[cluster.Strategy]string{cluster.Recreate: "take-down/drain", cluster.InPlace: "upgrade/drain"}

func drainFaults(s cluster.Strategy) map[string]*talosFault {
	all := joined(faultsOfEvictions(s), faultsOfVolumes(s))
	for _, f := range all {
		f.strategy = s
		if len(f.roll) == 0 {
			f.roll = []string{"drain: {timeout: 1m}"}
		}
		if f.at == atDrain {
			f.at = drainSteps[s]
		}
		f.spares = true
	}
	return all
}

const deleteAfter = "drain: {timeout: 1m, onTimeout: delete}"

// faultsOfEvictions are of budgets, webhooks, and pods that do not end or must not be evicted.
func faultsOfEvictions(s cluster.Strategy) map[string]*talosFault {
	const needs = "PodDisruptionBudget default/shop needs 1 healthy pods and has 1 currently"
	const two = "PodDisruptionBudgets default/shop and default/shop-too cover it, and Kubernetes evicts no pod that more than one covers"
	const denied = `admission webhook "hours.example.com" denied the request: not during trading hours`
	const lost = "no controller would bring these pods back: default/bare"
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

func leftCordoned(s cluster.Strategy) string {
	if s == cluster.InPlace {
		return "on, cordoned"
	}
	return isOut // by its record, which errs on the safe side
}

// faultsOfVolumes: the API does not answer, the Node is gone, or pods' volumes are not detached. An upgrade in place
// keeps all disks.
func faultsOfVolumes(s cluster.Strategy) map[string]*talosFault {
	hangs := &talosFault{
		first: podDisk, mends: inTurn(podDiskGone, podDiskFreed), kind: fault.Refused, stands: untouched,
		says: []string{"disks of pods to leave VM 9031: gave up after ", "still there: scsi7 (fast:9999/vm-9999-pvc-0b5f.raw)", "qm set 9031 --delete KEY"},
	}
	if s == cluster.InPlace {
		hangs = &talosFault{first: podDisk, stands: untouched}
	}
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
