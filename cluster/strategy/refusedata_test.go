package strategy

import (
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
)

// volume adds a volume to what the machine shows.
func volume(v cluster.Volume) func(*cluster.Wanted, *observe.Found, *observe.Observation) {
	return func(_ *cluster.Wanted, f *observe.Found, _ *observe.Observation) {
		f.Machine.Volumes = append(f.Machine.Volumes, v)
	}
}

// localAt is a local volume at that path of the node.
func localAt(path string) func(*cluster.Wanted, *observe.Found, *observe.Observation) {
	return func(_ *cluster.Wanted, f *observe.Found, _ *observe.Observation) {
		f.Local = []cluster.LocalData{{Name: "pv/pvc-1", What: "PersistentVolume pvc-1 (claim default/db-0)", Path: path}}
	}
}

// inTurn makes several changes.
func inTurn(changes ...func(*cluster.Wanted, *observe.Found, *observe.Observation)) func(*cluster.Wanted, *observe.Found, *observe.Observation) {
	return func(w *cluster.Wanted, f *observe.Found, o *observe.Observation) {
		for _, change := range changes {
			change(w, f, o)
		}
	}
}

// ephemeralOn has nothing but EPHEMERAL, on each of those disks.
func ephemeralOn(disks ...string) func(*cluster.Wanted, *observe.Found, *observe.Observation) {
	return func(_ *cluster.Wanted, f *observe.Found, _ *observe.Observation) {
		f.Machine.Volumes = f.Machine.Volumes[:0:0]
		for _, disk := range disks {
			f.Machine.Volumes = append(f.Machine.Volumes, cluster.Volume{Device: disk + "1", Disk: disk, Label: "EPHEMERAL", Phase: "ready"})
		}
	}
}

// wouldBeLost is the refusal to lose some data.
func wouldBeLost(what, name string) string {
	return what + " is on the system disk and would be lost: move it to a disk of its own, or name " + name + " in nodes[].acceptLoss"
}

func TestReplacingTheOnlyDataIsImpossible(t *testing.T) {
	t.Parallel()
	accept := func(names ...string) func(*cluster.Wanted, *observe.Found, *observe.Observation) {
		return func(w *cluster.Wanted, _ *observe.Found, _ *observe.Observation) { w.AcceptLoss = names }
	}
	logs := volume(cluster.Volume{Device: "sda5", Disk: "sda", Label: "u-logs"})
	status := func(v cluster.VolumeStatus) func(*cluster.Wanted, *observe.Found, *observe.Observation) {
		return func(_ *cluster.Wanted, f *observe.Found, _ *observe.Observation) {
			f.Machine.VolumeStatuses = append(f.Machine.VolumeStatuses, v)
		}
	}
	existing := volume(cluster.Volume{ID: "e-old", Device: "sda5", Disk: "sda", Label: "scratch", Phase: "ready"})
	legacy := volume(cluster.Volume{ID: "/dev/sda-5", Device: "sda5", Disk: "sda", Phase: "ready"})
	directory := status(cluster.VolumeStatus{ID: "u-dir", Type: cluster.DirectoryVolume, Phase: "ready"})
	pv := wouldBeLost("PersistentVolume pvc-1 (claim default/db-0)", "pv/pvc-1")
	extension := func(name string) func(*cluster.Wanted, *observe.Found, *observe.Observation) {
		return func(_ *cluster.Wanted, f *observe.Found, _ *observe.Observation) {
			f.Machine.Extensions = append(f.Machine.Extensions, cluster.ExtensionEntry{Name: name, Version: "1.0.0"})
		}
	}
	tailscale := wouldBeLost("state of extension tailscale (its node key and login, /var/lib/tailscale)", "extension/tailscale")
	check(t, map[string]refusalCase{
		"an extension's state":                     both(extension("tailscale"), tailscale),
		"an extension's state, accepted":           {change: inTurn(extension("tailscale"), accept("extension/tailscale"))},
		"of zerotier":                              both(extension("zerotier"), wouldBeLost("state of extension zerotier (its identity, /var/lib/zerotier-one)", "extension/zerotier")),
		"of netbird":                               both(extension("netbird"), wouldBeLost("state of extension netbird (its key and login, /var/lib/netbird)", "extension/netbird")),
		"on EPHEMERAL elsewhere":                   {change: inTurn(ephemeralOn("sdb"), extension("tailscale"))},
		"an extension without state":               {change: extension("iscsi-tools")},
		"below the path of a volume that is gone":  both(inTurn(localAt("/var/mnt/data/pvc-1"), status(cluster.VolumeStatus{ID: "META", Type: cluster.PartitionVolume})), pv),
		"below the path of a volume":               {change: inTurn(localAt("/var/mnt/data/pvc-1"), status(cluster.VolumeStatus{ID: "u-data", Type: cluster.PartitionVolume, Phase: "ready", Location: "/dev/sdb1"}))},
		"below the path of a directory":            both(inTurn(localAt("/var/mnt/data/pvc-1"), status(cluster.VolumeStatus{ID: "u-data", Type: cluster.DirectoryVolume, Phase: "ready"})), wouldBeLost("volume u-data, a directory on EPHEMERAL,", "u-data")+"\n"+pv),
		"user volume":                              both(logs, wouldBeLost("volume u-logs", "u-logs")),
		"user volume, accepted":                    {change: inTurn(logs, accept("u-logs"))},
		"something else accepted":                  both(inTurn(logs, accept("logs", "u-data")), wouldBeLost("volume u-logs", "u-logs")),
		"an existing volume":                       both(existing, wouldBeLost("volume e-old", "e-old")),
		"an existing volume, by its label":         {change: inTurn(existing, accept("scratch"))},
		"of machine.disks":                         both(legacy, wouldBeLost("volume /dev/sda-5", "/dev/sda-5")),
		"of machine.disks, by its device":          {change: inTurn(legacy, accept("sda5"))},
		"a directory":                              both(directory, wouldBeLost("volume u-dir, a directory on EPHEMERAL,", "u-dir")),
		"a directory, accepted":                    {change: inTurn(directory, accept("u-dir"))},
		"a directory of Talos":                     {change: status(cluster.VolumeStatus{ID: "LOG", Type: cluster.DirectoryVolume, Phase: "ready"})},
		"of the VM's host":                         {change: status(cluster.VolumeStatus{ID: "x-share", Type: cluster.ExternalVolume, Phase: "ready"})},
		"raw volume":                               both(volume(cluster.Volume{Device: "sda5", Disk: "sda", Label: "r-osd"}), wouldBeLost("volume r-osd", "r-osd")),
		"a label of one's own":                     both(volume(cluster.Volume{Device: "sda5", Disk: "sda", Label: "mine"}), wouldBeLost("volume mine", "mine")),
		"no label at all":                          both(volume(cluster.Volume{Device: "sda5", Disk: "sda"}), wouldBeLost("partition sda5", "sda5")),
		"swap holds nothing":                       {change: volume(cluster.Volume{Device: "sda5", Disk: "sda", Label: "s-swap"})},
		"Talos' own volumes":                       {change: volume(cluster.Volume{Device: "sda5", Disk: "sda", Label: "KUBELET", Phase: "ready"})},
		"local data":                               both(localAt("/var/lib/rancher/pvc-1"), pv),
		"local data, accepted":                     {change: inTurn(localAt("/var/lib/rancher/pvc-1"), accept("pv/pvc-1"))},
		"local data without path":                  both(localAt(""), pv),
		"on a user volume of another disk":         {change: localAt("/var/mnt/data/pvc-1")},
		"on a user volume, not quite":              both(localAt("/var/mnt/data/../other/pvc-1"), pv),
		"on a user volume of the system disk":      both(inTurn(logs, localAt("/var/mnt/logs")), wouldBeLost("volume u-logs", "u-logs")+"\n"+pv),
		"on EPHEMERAL of another disk":             {change: inTurn(ephemeralOn("sdb"), localAt("/var/lib/x"))},
		"on an EPHEMERAL that Talos does not show": both(inTurn(ephemeralOn(), localAt("/var/lib/x")), pv),
		"on one of two EPHEMERALs, none is known":  both(inTurn(ephemeralOn("sda", "sdb"), localAt("/var/lib/x")), pv+"\nthe label EPHEMERAL is there twice, on sda and on sdb: find out which one is in use, and give the other one another label"),
	})
}

func TestReplacingUnderEncryptionIsImpossible(t *testing.T) {
	t.Parallel()
	encrypted := func(e cluster.Encryption) func(*cluster.Wanted, *observe.Found, *observe.Observation) {
		return func(_ *cluster.Wanted, f *observe.Found, _ *observe.Observation) {
			f.Machine.Encryption = []cluster.Encryption{e}
		}
	}
	locked := func(volume string) string {
		return "volume " + volume + " is encrypted with lockToState and would be unreadable once STATE is gone: " +
			"add a key without lockToState and remove that one, or use in-place"
	}
	tpm := cluster.Encryption{Volume: "u-data", Keys: []string{"static", "tpm"}}
	check(t, map[string]refusalCase{
		"lockToState on a persistent disk":                 both(encrypted(cluster.Encryption{Volume: "u-data", Keys: []string{"nodeID"}, LockToState: true}), locked("u-data")),
		"lockToState on a volume that Talos does not show": both(encrypted(cluster.Encryption{Volume: "u-gone", LockToState: true}), locked("u-gone")),
		"lockToState on the system disk":                   {change: encrypted(cluster.Encryption{Volume: "EPHEMERAL", LockToState: true})},
		"lockToState on another EPHEMERAL": both(func(_ *cluster.Wanted, f *observe.Found, _ *observe.Observation) {
			f.Machine.Volumes[3].Disk = "sdb"
			f.Machine.Encryption = []cluster.Encryption{{Volume: "EPHEMERAL", LockToState: true}}
		}, locked("EPHEMERAL")),
		"node ID": {change: encrypted(cluster.Encryption{Volume: "u-data", Keys: []string{"nodeID"}})},
		"TPM without its state": both(encrypted(tpm), "volume u-data is encrypted with a TPM key, but the VM has no tpmstate0 that recast could keep: "+
			"add another key and remove that one, or use in-place"),
		"TPM with its state": {change: func(_ *cluster.Wanted, f *observe.Found, _ *observe.Observation) {
			f.Machine.Encryption = []cluster.Encryption{tpm}
			f.VM.Config["tpmstate0"] = "fast:vm-9002-disk-8,size=4M,version=v2.0"
		}},
	})
}

func TestReplacingBesideTalosLabelsIsImpossible(t *testing.T) {
	t.Parallel()
	stale := func(disk, label, device string) string {
		return disk + " carries a " + label + " partition (" + device + ") that Talos does not use now and might use then: "
	}
	const (
		drop    = "delete that partition"
		relabel = "give that partition another label, which keeps what is on it"
	)
	directory := func(id string) func(*cluster.Wanted, *observe.Found, *observe.Observation) {
		return func(_ *cluster.Wanted, f *observe.Found, _ *observe.Observation) {
			f.Machine.VolumeStatuses = append(f.Machine.VolumeStatuses, cluster.VolumeStatus{ID: id, Type: cluster.DirectoryVolume, Phase: "ready"})
		}
	}
	twice := func(label string) string {
		return "the label " + label + " is there twice, on sda and on sdb: Talos uses the one on sda: give the other one another label"
	}
	check(t, map[string]refusalCase{
		"META": both(volume(cluster.Volume{Device: "sdb2", Disk: "sdb", Label: "META"}),
			"sdb carries a META partition (sdb2): the boot ISO would take Talos for installed and halt: delete that partition\n"+twice("META")),
		"STATE": both(volume(cluster.Volume{Device: "sdb2", Disk: "sdb", Label: "STATE"}), stale("sdb", "STATE", "sdb2")+drop+"\n"+twice("STATE")),
		"a second EPHEMERAL": both(volume(cluster.Volume{Device: "sdb2", Disk: "sdb", Label: "EPHEMERAL"}),
			stale("sdb", "EPHEMERAL", "sdb2")+relabel+"\n"+twice("EPHEMERAL")),
		"an ETCD that Talos does not use":    both(volume(cluster.Volume{Device: "sdb2", Disk: "sdb", Label: "ETCD"}), stale("sdb", "ETCD", "sdb2")+relabel),
		"an ETCD whose document was dropped": {change: inTurn(volume(cluster.Volume{Device: "sdb2", Disk: "sdb", Label: "ETCD"}), directory("ETCD"))},
		"one that the next file uses": both(inTurn(volume(cluster.Volume{Device: "sdb2", Disk: "sdb", Label: "ETCD"}), directory("ETCD"), func(_ *cluster.Wanted, f *observe.Found, _ *observe.Observation) {
			f.File = &cluster.FoundFile{Volumes: []cluster.ConfigVolume{{ID: "ETCD", Type: cluster.PartitionVolume}}}
		}), stale("sdb", "ETCD", "sdb2")+relabel),
		"another's is a directory":       both(inTurn(volume(cluster.Volume{Device: "sdb2", Disk: "sdb", Label: "ETCD"}), directory("CRI")), stale("sdb", "ETCD", "sdb2")+relabel),
		"an ETCD that it uses":           {change: volume(cluster.Volume{Device: "sdb2", Disk: "sdb", Label: "ETCD", Phase: "ready"})},
		"EPHEMERAL on a persistent disk": {change: func(_ *cluster.Wanted, f *observe.Found, _ *observe.Observation) { f.Machine.Volumes[3].Disk = "sdb" }},
		"a user volume twice": both(volume(cluster.Volume{Device: "sdc1", Disk: "sdc", Label: "u-data"}),
			"the label u-data is there twice, on sdb and on sdc: Talos uses the one on sdb: give the other one another label"),
		"a copy of the system disk's STATE": both(inTurn(func(_ *cluster.Wanted, f *observe.Found, _ *observe.Observation) {
			f.Machine.Volumes[2].PartitionUUID = "p-state"
		}, volume(cluster.Volume{Device: "sdb3", Disk: "sdb", Label: "STATE", PartitionUUID: "p-state"})),
			stale("sdb", "STATE", "sdb3")+"it is the same as sda3, so one disk is a copy of the other: find out which, and take the copy out of the VM while that is off\n"+twice("STATE")),
		"a META in a pool": both(volume(cluster.Volume{Device: "sdb2", Disk: "sdb", Label: "META", Format: cluster.FormatLVM}),
			"sdb carries a META partition (sdb2): the boot ISO would take Talos for installed and halt: something uses it: find out what before you change it\n"+twice("META")),
	})
}
