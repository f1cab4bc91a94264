package roll

import (
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/parking"
)

func paused(k *cluster.KubeNode) { k.Pause = "mine" }

func noQuorum(s *scene) { s.px.NoQuorum = true }

func noISO(s *scene) { s.px.Volumes = nil }

func stays(s *scene) {
	s.local = []cluster.LocalData{{Name: "pv/pvc-1", What: "PersistentVolume pvc-1", Path: "/var/x"}}
}

func digest(change func(*scene)) func(*scene) {
	return func(s *scene) {
		s.Plan.Digest = s.px.Guests[101].Digest
		s.Plan.Found.VM.Digest = s.Plan.Digest
		change(s)
	}
}

func fails(call string, err error) func(*scene) {
	return func(s *scene) { s.px.Fail = map[string]error{call: err} }
}

func tidies(s *scene) { s.Plan.Drift.Reasons = []cluster.Reason{{Code: "cordoned"}} }

// lookRows are about the last look before a node is taken out.
func lookRows() []gateRow {
	const gone, lost = "which a delete would drop", "would be lost"
	tied := func(s *scene) { s.px.Tied.Dropped = []string{"a firewall"} }
	busy := func(s *scene) { s.px.Tied.Snapshots = []string{"daily"} }
	full := func(s *scene) {
		s.Plan.Space = &observe.NewDisk{Node: "wk1", Host: "pve1", Storage: cluster.Storage{Name: "fast"}, Bytes: 1 << 40}
		s.px.Space.Storages = []cluster.StorageRoom{{Name: "fast", Active: true, Total: 1 << 30, Free: 1 << 20}}
	}
	return []gateRow{
		{do: "recreate", change: onNode("wk1", paused), err: "was paused since the plan was made: mine"},
		{do: "resume", change: onNode("wk1", paused)},
		{do: "configure", change: onNode("wk1", paused)},
		{do: "hooks", change: onNode("wk1", paused), err: "was paused since"},
		{do: "recreate", change: noQuorum, err: "has no quorum"},
		{do: "put back", change: noQuorum, err: "has no quorum"},
		{do: "in place", change: noQuorum},
		{do: "configure", change: noQuorum},
		{do: "in place", change: waiting, err: "cp3"},
		{do: "in place again"},
		{do: "in place", change: all(waiting, tidies), err: ""},
		{do: "resume", change: noISO, err: "boot ISO new.iso is on none of isos"},
		{do: "recreate", change: noISO, err: "boot ISO new.iso is on none of isos"},
		{do: "rollback", change: noISO},
		{do: "recreate", change: full, err: "no room for the new system disk"},
		{do: "resume", change: full},
		{do: "recreate", change: all(full, fails("Room", cluster.ErrNotNow)), err: "read the room on pve1"},
		{do: "recreate", change: all(full, fails("Room", cluster.ErrNotFound)), err: "no room for the new system disk"},
		{do: "recreate", change: tied, err: gone},
		{do: "reimage", change: tied},
		{do: "reimage", change: busy, err: "has snapshots (daily)"},
		{do: "in place", change: busy},
		{do: "recreate", change: stays, err: lost},
		{do: "rollback", change: stays, err: lost},
		{do: "resume", change: stays, err: lost},
		{do: "resume", change: silent},
		{do: "in place", change: stays, err: "could not be reimaged"},
		{do: "in place", change: all(stays, func(s *scene) { s.Plan.Previous = nil })},
		{do: "in place", change: noISO, err: "boot ISO old.iso is on none of isos"},
		{do: "recreate", change: func(s *scene) { s.Plan.Found.VM.Config = kv{"scsi0": ","} }, err: "no volume"},
		{do: "recreate", change: digest(on(101, kv{"memory": "1"})), err: "is no longer as it was when the plan was made"},
		{do: "recreate", change: all(digest(on(101, kv{"scsi7": "fast:vm-9999-pvc-1"})), func(s *scene) { s.pods = []string{"lab/pve1/fast/vm-9999-pvc-1"} })},
		{do: "recreate", change: digest(all(on(101, kv{"scsi7": "fast:vm-9999-pvc-1"}), fails("PodVolumes", cluster.ErrNotNow))), err: "no answer just now"},
		{do: "recreate", change: fails("OwnedVolumes", cluster.ErrNotNow), err: "read storage fast, on which scsi0 of VM 101 is"},
		{do: "recreate", change: func(s *scene) { s.px.Guests[101].Config["smbios1"] = "uuid=v" }, err: "is no longer as it was when the plan was made"},
		{do: "recreate", change: func(s *scene) { s.px.Change(101, func(vm *cluster.VM) { vm.Host = "pve2" }) }, err: "was on pve1 when the plan was made"},
		{do: "recreate", change: func(s *scene) { s.owners = []string{"tuppr"} }, err: "is looked after by tuppr"},
		{do: "recreate", change: func(s *scene) { s.Plan.Found.Machine.ConfigArgs = []string{"siderolink.api=x"} }, err: "Omni (siderolink.api=x)"},
		{do: "recreate", change: waiting, err: "cp3"},
		{do: "recreate", change: all(waiting, func(s *scene) { s.Out.Add("cp3") })},
		{do: "resume cp", change: func(s *scene) { delete(s.status, addr(12)) }, err: "etcd would not survive losing cp1"},
		{do: "resume cp", change: all(func(s *scene) { delete(s.status, addr(12)); s.mem.BootID = "b0" })},
	}
}

// etcdRows are about a control plane's part in etcd.
func etcdRows() []gateRow {
	without := func(name string) func(*scene) {
		return func(s *scene) {
			for i, m := range s.members {
				if m.Name == name {
					s.members = append(s.members[:i:i], s.members[i+1:]...)
					return
				}
			}
		}
	}
	dead := func(s *scene) { delete(s.status, addr(12)) }
	mute := func(s *scene) { delete(s.status, addr(11)) }
	twins := func(s *scene) { s.members[1].Name = "cp1" }
	runs := func(id uint64) func(*scene) {
		return func(s *scene) { s.status[addr(11)] = cluster.EtcdStatus{MemberID: id, Leader: 2, Version: "3.6.4"} }
	}
	alone := func(s *scene) {
		s.Plan.ControlPlanes, s.members, s.Plan.EtcdKept = s.Plan.ControlPlanes[:1], s.members[:1], true
	}
	two := all(without("cp3"), func(s *scene) { s.Plan.ControlPlanes = s.Plan.ControlPlanes[:2]; delete(s.nodes, "cp3") })
	away := func(s *scene) { s.members[0].Peers = []string{"https://10.0.0.98:2380"}; s.uuids[addr(98)] = "other" }
	silentMembers := fails("EtcdMembers", cluster.ErrNotNow)
	kept := func(s *scene) { s.Plan.EtcdKept = true }
	gone := all(without("cp1"), mute)
	return []gateRow{
		{do: "recreate", change: dead},
		{do: "cp", change: dead, err: "etcd would not survive losing cp1: cp2 does not answer"},
		{do: "cp", change: silentMembers, err: "can't be told"},
		{do: "cp", change: twins, err: "etcd has two members named cp1"},
		{do: "cp", change: all(alone, func(s *scene) {
			s.status[addr(11)] = cluster.EtcdStatus{MemberID: 1, Leader: 1, Version: "3.6.4", Errors: []string{"NOSPACE"}}
		}), err: "NOSPACE"},
		{do: "cp", change: alone},
		{do: "cp", change: gone},
		{do: "cp", change: all(gone, kept), err: "is no member of etcd"},
		{do: "cp", change: two, err: "etcd has two members"},
		{do: "cp", change: without("cp3"), err: "the cluster has 3 control planes, but etcd without cp1 only these members: cp2"},
		{do: "cp", change: all(without("cp1"), runs(2)), err: "which goes by the name of cp2"},
		{do: "cp", change: all(without("cp1"), runs(7)), err: "which the others (cp2, cp3) do not know"},
		{do: "cp", change: runs(7), err: "but is not what runs on 10.0.0.11"},
		{do: "cp", change: func(s *scene) {
			statuses := 0
			s.px.At = func() {
				if s.px.Made != nil && s.px.Made[len(s.px.Made)-1] == "EtcdStatus" {
					if statuses++; statuses == 3 {
						delete(s.status, addr(11))
					}
				}
			}
		}, err: "but is not what runs on 10.0.0.11"},
		{do: "cp", change: mute},
		{do: "cp", change: all(mute, away), err: "etcd member 1 is named cp1, but runs on 10.0.0.98"},
		{do: "may leave", change: dead, err: "etcd must be healthy for cp1 to leave it"},
		{do: "may leave", change: all(gone, dead)},
		{do: "may leave", change: silentMembers, err: "no answer just now"},
		{do: "may leave", change: twins, err: "etcd has two members named cp1"},
		{do: "may leave", change: runs(7), err: "but is not what runs on 10.0.0.11"},
		{do: "may leave", change: func(s *scene) { s.uuids[addr(11)] = "other" }, err: "answers with UUID other"},
		{do: "put back cp", change: joined, err: "which is no member any more"},
		{do: "put back cp", change: without("cp1"), err: "which is no member any more"},
		{do: "put back cp", change: twins, err: "etcd has two members named cp1"},
		{do: "put back cp", change: silentMembers, err: "no answer just now"},
		{do: "put back cp", change: all(joined, func(s *scene) { s.rec.Left = true })},
		{do: "out", change: silent, done: " "},
		{do: "out", change: without("cp1"), done: " "},
		{do: "is out", change: without("cp1"), err: "said the replacement is no member of etcd"},
		{do: "is out", change: twins, err: "etcd has two members named cp1"},
		{do: "is out", change: silentMembers, err: "no answer just now"},
		{do: "is out", change: all(off, silentMembers), err: "if it was a member, etcd waits for its vote"},
		{do: "is out", change: off, err: "said the replacement is off"},
		{do: "is out", change: all(off, dead)},
		{do: "is out", change: on(101, kv{"scsi0": ""}), err: "does not have the new system disk"},
		{do: "is out", change: func(s *scene) { s.mem.EtcdKept = true }, err: "etcd goes on with what the disks hold"},
		{do: "reboot", change: dead, err: "etcd would not survive losing cp1"},
		{do: "reboot", change: all(dead, mute)},
		{do: "reboot", change: func(s *scene) { dead(s); s.Plan.Role = cluster.Worker }},
		{do: "boot failed", err: "and it is not asked to boot its previous system"},
	}
}

// identityRows are about whose name a node has.
func identityRows() []gateRow {
	other := onNode("wk1", func(k *cluster.KubeNode) { k.UUID = "v" })
	otherCP := onNode("cp1", func(k *cluster.KubeNode) { k.UUID = "v" })
	twins := func(s *scene) { s.members[0].Name, s.members[1].Name = "cp1", "cp1" }
	elsewhere := func(s *scene) { s.members[0].Peers = []string{"https://10.0.0.98:2380"}; s.uuids[addr(98)] = "other" }
	return []gateRow{
		{do: "recreate", change: func(s *scene) { s.uuids[addr(21)] = "v" }, err: "10.0.0.21 answers with UUID v, not u"},
		{do: "recreate", change: func(s *scene) { s.machine.Nodename = "wk9" }, err: "is node wk9 by now"},
		{do: "recreate", change: other, err: "Kubernetes has UUID v for node wk1"},
		{do: "configure", change: other, err: "Kubernetes has UUID v for node wk1"},
		{do: "configure", change: elsewhere},
		{do: "configure cp", change: otherCP, err: "Kubernetes has UUID v for node cp1"},
		{do: "configure cp", change: elsewhere, err: "etcd member 1 is named cp1, but runs on 10.0.0.98"},
		{do: "configure cp", change: twins, err: "etcd has two members named cp1"},
		{do: "uncordon", change: other, err: "Kubernetes has UUID v for node wk1"},
		{do: "drain", change: other, err: "Kubernetes has UUID v for node wk1", done: "uncordon\nset 9900 map[description:record protection:1] delete []"},
		{do: "start", change: other, err: "Kubernetes has UUID v for node wk1"},
		{do: "configured", change: other, err: "Kubernetes has UUID v for node wk1"},
		{do: "again", change: other, err: "Kubernetes has UUID v for node wk1"},
	}
}

// lossRows are about data that goes with a system disk.
func lossRows() []gateRow {
	const lost = "would be lost"
	lonely := func(s *scene) { s.Plan.ControlPlanes = s.Plan.ControlPlanes[:1] }
	unread := fails("LocalData", cluster.ErrNotNow)
	return []gateRow{
		{do: "losses", change: stays, err: lost},
		{do: "losses", change: all(stays, swapped)},
		{do: "asks", change: stays, err: lost},
		{do: "asks cp", change: all(stays, lonely), err: lost},
		{do: "asks cp", change: all(unread, lonely)},
		{do: "asks cp", change: unread, err: "gave up after 1m0s", took: time.Minute},
		{do: "asks", change: all(unread, lonely), err: "gave up after 1m0s", took: time.Minute},
		{do: "record", change: stays, err: lost},
		{do: "drain", change: stays, err: lost, done: "cordon\ndrain\nuncordon\nset 9900 map[description:record protection:1] delete []"},
		{do: "put back", change: all(stays, onNode("wk1", func(k *cluster.KubeNode) { k.BootID = "b2" })), err: lost},
		{do: "put back", change: all(stays, on(101, kv{"scsi0": "fast:vm-101-disk-0"}))},
		{do: "losses", change: all(stays, on(101, kv{"scsi0": ""}))},
		{do: "losses", change: func(s *scene) { delete(s.px.Guests, 101) }},
		{do: "losses", change: func(s *scene) { s.machine.Volumes = []cluster.Volume{{Device: "sda7", Disk: "sda", Label: "u-x"}} }, err: lost},
		{do: "losses", change: func(s *scene) {
			s.machine.Volumes = []cluster.Volume{{Device: "sda7", Disk: "sda", Label: "u-x"}}
			s.uuids[addr(21)] = "v"
		}},
		{do: "losses", change: func(s *scene) { s.rec.Run = "r0"; silent(s); s.px.Fail = map[string]error{"Get": cluster.ErrNotNow} }, err: "no answer"},
		{do: "losses", change: func(s *scene) { s.rec.Memory = "?" }, err: "can't be read"},
		{do: "losses", change: func(s *scene) { delete(s.nodes, "wk1") }},
		{do: "losses", change: fails("LocalData", cluster.ErrNotNow), err: "no answer just now"},
		{do: "losses", change: all(resumed, fails("LocalData", cluster.ErrNotNow), func(s *scene) { s.Plan.Found.Node = nil })},
		{do: "losses", change: all(fails("LocalData", cluster.ErrNotNow), func(s *scene) { s.Plan.Found.Node = nil }), err: "no answer just now"},
		{do: "asks", change: fails("LocalData", cluster.ErrNotNow), err: "gave up after 1m0s", took: time.Minute},
		{do: "asks", change: func(s *scene) {
			s.px.FailAt = 4 // of the first look: the Node
			stays(s)
		}, err: lost},
	}
}

// lateRows are about requests that may come yet.
func lateRows() []gateRow {
	sent := func(what string) func(*scene) {
		return func(s *scene) { begun(s); s.rec.Open = false; s.rec.Sent = parking.Sent{what: 100} }
	}
	others := func(change func(*parking.Record)) func(*scene) {
		return func(s *scene) {
			rec := parking.Record{Cluster: "c1", Node: "cp2", Run: "r0", VMID: 102, ControlPlane: true, Sent: parking.Sent{cluster.SentShutdown: 100}}
			change(&rec)
			description, _ := rec.Description()
			s.px.Guests[9901] = cluster.VM{ID: 9901, Name: "recast-parking-cp2", Host: "pve1", Config: kv{"description": description}}
		}
	}
	const hundred, forgotten = 100 * time.Second, "set 9901 map[description:record protection:1] delete []"
	same := func(*parking.Record) {}
	cut := func(s *scene) { s.cancel() }
	return []gateRow{
		{do: "recreate", change: sent("start"), took: hundred},
		{do: "recreate", change: sent("delete"), took: hundred},
		{do: "recreate", change: all(sent("start"), cut), err: "context canceled"},
		{do: "recreate", change: all(sent("delete"), cut), err: "context canceled"},
		{do: "cp", change: all(others(same), cut), err: "context canceled"},
		{do: "late cp"},
		{do: "recreate", change: sent(cluster.SentAddHA), took: hundred},
		{do: "resume", change: func(s *scene) { s.rec.Sent = parking.Sent{"start": 100} }},
		{do: "resume", change: func(s *scene) { s.rec.Sent = parking.Sent{"delete": 100} }},
		{do: "resume", change: func(s *scene) { s.rec.Sent = parking.Sent{cluster.SentAddHA: 100} }, took: hundred},
		{do: "put back", change: func(s *scene) { s.rec.Sent = parking.Sent{"start": 100} }, took: hundred},
		{do: "put back", change: func(s *scene) { s.rec.Sent = parking.Sent{"delete": 100} }},
		{do: "in place", change: sent("start")},
		{do: "recreate", change: others(same)},
		{do: "cp", change: others(same), took: hundred, done: forgotten},
		{do: "cp", change: others(func(rec *parking.Record) { rec.ControlPlane = false })},
		{do: "cp", change: func(s *scene) {
			s.px.Guests[9901] = cluster.VM{ID: 9901, Config: kv{"description": "recast-record: {"}}
		}, err: "can't be read"},
	}
}

// configRows are about the machine that is given a configuration, and about that.
func configRows() []gateRow {
	labelled := func(devices ...string) func(*scene) {
		return func(s *scene) {
			for _, d := range devices {
				s.blank.Volumes = append(s.blank.Volumes, cluster.Volume{Device: d, Disk: "sdb", Label: "STATE"})
			}
		}
	}
	const stopped = "set 9900 map[description:record protection:1] delete []\nstop 101\nset 9900 map[description:record protection:1] delete []"
	damaged := func(s *scene) { s.rec.Config = "x" }
	sum := func(s *scene) { s.rec.Config = cluster.ConfigSum(s.config["file"]) }
	edited := func(s *scene) { s.config["file"] = cluster.Secret("version: v1alpha1\nmachine: {type: worker}\n") }
	unsaved := func(s *scene) { delete(s.config, "journal") }
	unplanned := func(s *scene) { s.Plan.ConfigFile = nil }
	unfiled := func(s *scene) { delete(s.config, "file") }
	return []gateRow{
		{do: "configured", change: func(s *scene) { s.blank.UUID = "v" }, err: "answers with UUID v, not u", done: stopped},
		{do: "configured", change: func(s *scene) { s.blank.Disks[0].Serial = "other" }, err: "0 disks of the machine are the blank system disk", done: stopped},
		{do: "configured", change: func(s *scene) { s.blank.Disks[0].Blank = false }, err: "the new system disk sda is not blank", done: stopped},
		{do: "configured", change: func(s *scene) { s.mem.Volumes = []cluster.Volume{{Label: "u-data", PartitionUUID: "p", Format: "xfs"}} }, err: "is missing", done: stopped},
		{do: "configured", change: labelled("sdb1", "sdb2"), err: "the label STATE is on sdb1 and on sdb2", done: stopped},
		{do: "configured", change: labelled("sdb1")},
		{do: "configured", change: func(s *scene) { s.blank.TalosVersion = "v1.0.0" }, err: "it booted v1.0.0", done: stopped},
		{do: "configured", change: func(s *scene) { s.blank.Stage = "installing" }, err: "look at the console of VM 101: if Talos says", took: time.Minute},
		{do: "configured", change: func(s *scene) { s.uuids[addr(21)] = "u" }, err: "", done: " "},
		{do: "configured", change: all(off, func(s *scene) { s.applied = "" }), err: "is off", done: "apply"},
		{do: "again", change: all(off, func(s *scene) { s.applied = "" }), err: "is off", done: "apply"},
		{do: "configured", change: fails("apply", cluster.ErrNotFound), err: "apply the configuration"},
		{do: "again", change: func(s *scene) { s.blank.UUID = "v" }, err: "it is not as it was when the plan was made"},
		{do: "again", change: func(s *scene) { s.blank.Stage = "booting" }, err: "it is not as it was when the plan was made"},
		{do: "again", change: func(s *scene) { s.blank.FromISO = true }, err: "it is not as it was when the plan was made"},
		{do: "again", change: all(unfiled, unplanned), err: "is not in talos.machineConfigs"},
		{do: "again", change: fails("apply", cluster.ErrNotFound), err: "apply the configuration"},
		{do: "config", change: damaged, err: "its SHA-256 is"},
		{do: "config", change: unsaved, err: "is neither in the journal nor in talos.machineConfigs"},
		{do: "config", change: all(unsaved, filed), err: ""},
		{do: "config", change: all(unsaved, filed, edited), err: "is not the machine configuration that run r1 remembered"},
		{do: "config", change: all(unsaved, filed, sum, edited), err: "is not the machine configuration that run r1 remembered"},
		{do: "config", change: all(unsaved, filed, edited, sum)},
		{do: "config", change: all(unsaved, filed, unfiled), err: "is neither in the journal nor in talos.machineConfigs"},
		{do: "config", change: all(filed, damaged), err: "its SHA-256 is"},
		{do: "config", change: all(unsaved, filed, fails("file", cluster.ErrNotNow)), err: "no answer just now"},
		{do: "file", change: unfiled, err: "its file in talos.machineConfigs is gone"},
		{do: "file", change: unplanned, err: "it has a file in talos.machineConfigs now"},
		{do: "file", change: all(unfiled, unplanned)},
		{do: "file", change: edited, err: "its file in talos.machineConfigs was changed"},
		{do: "file", change: func(s *scene) { s.config["file"] = cluster.Secret("{") }, err: "not a machine configuration"},
		{do: "file", change: func(s *scene) { s.config["runs"] = nil }, err: "the configuration that it runs was changed"},
		{do: "file", change: func(s *scene) { s.Plan.ConfigFile.Runs = ""; s.config["runs"] = nil }},
	}
}

// otherRows are about the VM, its record, and what is made for a trial or a restore.
func otherRows() []gateRow {
	record := func(change func(*parking.Record)) func(*scene) { return func(s *scene) { change(s.rec) } }
	text := func(text string) func(*scene) {
		return func(s *scene) {
			s.ready()
			s.px.Set(9900, kv{"description": text})
		}
	}
	return []gateRow{
		{do: "start", change: on(101, kv{"smbios1": "uuid=v"}), err: "is not the one that run r1 created"},
		{do: "start", change: is(cluster.Recreate), err: "is not the one that run r1 created"},
		{do: "start", change: func(s *scene) { s.px.Change(101, func(vm *cluster.VM) { vm.Running = true }) }, err: "is on, but its emulator says"},
		{do: "start", change: on(101, kv{"scsi9": "fast:vm-200-disk-0"}), err: "whose that is, does not exist"},
		{do: "start", change: on(101, kv{"scsi9": ","}), err: "no volume"},
		{do: "back out", change: func(s *scene) { s.ready(); s.px.Set(9900, kv{"scsi30": "fast:vm-9900-disk-0,backup=0"}) }, err: "has disks of wk1 already (scsi0)"},
		{do: "down", change: record(func(rec *parking.Record) { rec.Open = false })},
		{do: "down", change: record(func(rec *parking.Record) { rec.Run = "r0" })},
		{do: "down", change: func(s *scene) { s.rec = nil }},
		{do: "down", change: swapped, err: "was renewed by this run"},
		{do: "parking", change: text("recast-record: {"), err: "can't be read"},
		{do: "parking", change: text("mine"), err: "no longer says so"},
		{do: "parking", change: record(func(rec *parking.Record) { rec.Node = "wk2" }), err: "no longer says so"},
		{do: "parking", change: record(func(rec *parking.Record) { rec.Cluster = "c2" }), err: "no longer says so"},
		{do: "parking", change: all(record(func(rec *parking.Record) { rec.Node = "wk2" }), (*scene).ready, func(s *scene) { s.number, s.Plan.Found.Parking = 9900, nil }), err: "parking VM of wk1: not found"},
		{do: "record", change: record(func(rec *parking.Record) { rec.Open = false }), err: "another run was here"},
		{do: "record", change: record(func(rec *parking.Record) { rec.Run = "r0" }), err: "another run was here"},
		{do: "prove", change: func(s *scene) { s.mem.VM.Config = kv{"hookscript": "x"} }, err: "has hookscript"},
	}
}
