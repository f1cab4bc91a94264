package simtest

import (
	"maps"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/talosapi"
)

// The states of a node after a failed roll.
const (
	untouched = "on"
	isOut     = "on, its old disk parked, cordoned"
	isOff     = "off, its old disk parked, cordoned"
)

var (
	threePlanes = sim.Options{ControlPlanes: 3, Workers: 1}
	twoWorkers  = sim.Options{ControlPlanes: 1, Workers: 2}
	unattended  = sim.Options{TalosVersion: "v1.14.1"} // installs by its own document
)

// fiveHours is a hardware clock that is set to local time.
var fiveHours = talosapi.Trouble{Clock: 5 * time.Hour}

func talosFaults() map[string]*talosFault {
	all := map[string]*talosFault{}
	for _, rows := range []map[string]*talosFault{faultsOfBoots(), faultsOfIdentity(), faultsOfNames(), faultsOfInstalls(), faultsOfEtcd(), faultsInPlace(), normalTroubles()} {
		maps.Copy(all, rows)
	}
	return all
}

// faultsOfBoots: what the machine boots, and whether it reaches its API.
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
			begins: inTurn(published, swapISOs), mends: swapISOs,
			kind: fault.Refused, says: []string{"VM 9031 was stopped before anything was applied", "it booted v1.13.9 with schematic"}, stands: isOff,
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
			says: []string{"cp2 healthy for 2s: gave up after 3m2s", "it is no member of etcd", "recast undo cp2"}, stands: isOut,
		},
	}
}

// faultsOfIdentity: who answers, and whether either side trusts the other.
func faultsOfIdentity() map[string]*talosFault {
	return map[string]*talosFault{
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

// faultsOfInstalls: whether the machine accepts its configuration and installs Talos.
func faultsOfInstalls() map[string]*talosFault {
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
	}
}

// faultsOfEtcd: whether the machine becomes a member again.
func faultsOfEtcd() map[string]*talosFault {
	down, up := talosapi.EtcdFault{Down: true}, talosapi.EtcdFault{}
	return map[string]*talosFault{
		"its etcd does not rejoin": {
			o: threePlanes, rolls: "cp2", at: "bring-up/start", begins: breakEtcd(down, "cp2"), mends: breakEtcd(up, "cp2"),
			says: []string{"stage booting, not ready: services: etcd not running", "it is no member of etcd yet", "recast undo cp2"}, stands: isOut,
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
			o: sim.Options{TalosVersion: "v1.12.6"}, first: newVersion, begins: breakInstaller(talosapi.RollsBack), mends: mendInstaller, remedy: recreated, parks: true,
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
