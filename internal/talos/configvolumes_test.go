package talos_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/talos"
)

const mainOnly = "version: v1alpha1\nmachine: {type: worker}\ncluster: {}\n"

// systemPartition is a VolumeConfig that makes its volume a partition; of the others that need none, "" has no document.
const systemPartition = "---\napiVersion: v1alpha1\nkind: VolumeConfig\nname: %s\nprovisioning: {%s}\n"

func configVolumes(t *testing.T, text, version string) map[string]cluster.ConfigVolume {
	t.Helper()
	all, err := (&talos.Client{}).ConfigVolumes(cluster.Secret(text), version)
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	out := map[string]cluster.ConfigVolume{}
	for _, v := range all {
		out[v.ID] = v
	}
	return out
}

// TestSystemVolumesByConfiguration: ETCD, CRI, KUBELET and LOG are partitions exactly where a document has provisioning,
// and Talos knows that.
func TestSystemVolumesByConfiguration(t *testing.T) {
	t.Parallel()
	for _, id := range []string{"ETCD", "CRI", "KUBELET", "LOG"} {
		for name, tc := range map[string]struct {
			text, talos string
			want        cluster.VolumeType
		}{
			"no document":     {mainOnly, "v1.14.1", "directory"},
			"no provisioning": {mainOnly + fmt.Sprintf("---\napiVersion: v1alpha1\nkind: VolumeConfig\nname: %s\n", id), "v1.14.1", "directory"},
			"empty":           {mainOnly + fmt.Sprintf(systemPartition, id, ""), "v1.14.1", "directory"},
			"a selector":      {mainOnly + fmt.Sprintf(systemPartition, id, "diskSelector: {match: \"!system_disk\"}"), "v1.14.1", "partition"},
			"a size":          {mainOnly + fmt.Sprintf(systemPartition, id, "maxSize: 5GiB"), "v1.14.0-rc.1", "partition"},
			"grows":           {mainOnly + fmt.Sprintf(systemPartition, id, "grow: false"), "", "partition"},
			"for Talos 1.13":  {mainOnly + fmt.Sprintf(systemPartition, id, "maxSize: 5GiB"), "v1.13.9", "directory"},
			"another one's":   {mainOnly + fmt.Sprintf(systemPartition, "EPHEMERAL", "maxSize: 5GiB"), "v1.14.1", "directory"},
		} {
			if got := configVolumes(t, tc.text, tc.talos)[id]; got.Type != tc.want || got.Document != "VolumeConfig "+id {
				t.Errorf("%s, %s: %+v", id, name, got)
			}
		}
	}
}

// TestUserVolumesByConfiguration: volumes of every kind have their ID, and what Talos finds them by.
func TestUserVolumesByConfiguration(t *testing.T) {
	t.Parallel()
	const document = "---\napiVersion: v1alpha1\nkind: %s\nname: data\n%s\n"
	for text, want := range map[string]cluster.ConfigVolume{
		fmt.Sprintf(document, "UserVolumeConfig", "provisioning: {diskSelector: {match: \"!system_disk\"}, minSize: 1GiB}"):              {ID: "u-data", Document: "UserVolumeConfig data", Type: "partition", Place: "!system_disk", Filesystem: "xfs"},
		fmt.Sprintf(document, "UserVolumeConfig", "volumeType: disk\nprovisioning: {diskSelector: {match: \"!system_disk\"}}"):           {ID: "u-data", Document: "UserVolumeConfig data", Type: "disk", Place: "!system_disk", Found: true, Filesystem: "xfs"},
		fmt.Sprintf(document, "UserVolumeConfig", "volumeType: directory"):                                                               {ID: "u-data", Document: "UserVolumeConfig data", Type: "directory"},
		fmt.Sprintf(document, "RawVolumeConfig", "provisioning: {diskSelector: {match: \"!system_disk\"}, minSize: 1GiB}"):               {ID: "r-data", Document: "RawVolumeConfig data", Type: "partition", Place: "!system_disk"},
		fmt.Sprintf(document, "SwapVolumeConfig", "provisioning: {diskSelector: {match: \"!system_disk\"}, minSize: 1GiB}"):              {ID: "s-data", Document: "SwapVolumeConfig data", Type: "partition", Place: "!system_disk"},
		fmt.Sprintf(document, "ExistingVolumeConfig", "discovery: {volumeSelector: {match: \"volume.name == 'xfs'\"}}"):                  {ID: "e-data", Document: "ExistingVolumeConfig data", Type: "partition", Place: "volume.name == 'xfs'", Found: true},
		fmt.Sprintf(document, "ExternalVolumeConfig", "filesystemType: virtiofs\nmount: {virtiofs: {tag: share0}}"):                      {ID: "x-data", Document: "ExternalVolumeConfig data", Type: "external", Place: "virtiofs share0", Found: true},
		strings.Replace(mainOnly, "worker", "worker, disks: [{device: /dev/sdb, partitions: [{size: 1GB, mountpoint: /var/mnt/a}]}]", 1): {ID: "/dev/sdb-1", Document: "machine.disks /dev/sdb", Type: "partition", Mount: "/var/mnt/a", Found: true},
	} {
		if !strings.HasPrefix(text, "version") {
			text = mainOnly + text
		}
		if diff := cmp.Diff(want, configVolumes(t, text, "v1.14.1")[want.ID]); diff != "" {
			t.Errorf("%s\n(-want +got):\n%s", text, diff)
		}
	}
}

// TestEncryptionByConfiguration: what opens a volume is the same wherever it is written, and no key is shown.
func TestEncryptionByConfiguration(t *testing.T) {
	t.Parallel()
	legacy := func(keys string) string {
		return strings.Replace(mainOnly, "worker", "worker, systemDiskEncryption: {ephemeral: {provider: luks2, keys: ["+keys+"]}}", 1)
	}
	document := func(encryption string) string {
		return mainOnly + "---\napiVersion: v1alpha1\nkind: VolumeConfig\nname: EPHEMERAL\nencryption: {" + encryption + "}\n"
	}
	nodeID := document("provider: luks2, keys: [{slot: 0, nodeID: {}}]")
	hush := document("provider: luks2, keys: [{slot: 0, static: {passphrase: hush}}]")
	for name, tc := range map[string]struct {
		was, is string
		opens   bool
	}{
		"moved to its document":   {legacy("{slot: 0, nodeID: {}}"), nodeID, true},
		"in both":                 {nodeID, strings.Replace(nodeID, "type: worker", "type: worker, systemDiskEncryption: {ephemeral: {provider: luks2, keys: [{slot: 0, static: {passphrase: x}}]}}", 1), true},
		"gone":                    {legacy("{slot: 0, nodeID: {}}"), mainOnly, false},
		"new":                     {mainOnly, legacy("{slot: 0, nodeID: {}}"), false},
		"another passphrase":      {hush, strings.Replace(hush, "hush", "shush", 1), false},
		"the same passphrase":     {hush, hush, true},
		"another kind of key":     {hush, nodeID, false},
		"another slot":            {hush, strings.Replace(hush, "slot: 0", "slot: 1", 1), false},
		"locked to STATE":         {hush, strings.Replace(hush, "slot: 0", "slot: 0, lockToState: true", 1), false},
		"one more key":            {hush, strings.Replace(hush, "keys: [", "keys: [{slot: 1, nodeID: {}}, ", 1), true},
		"another server":          {document("provider: luks2, keys: [{slot: 0, kms: {endpoint: 'https://a'}}]"), document("provider: luks2, keys: [{slot: 0, kms: {endpoint: 'https://b'}}]"), false},
		"the usual cipher, named": {hush, document("provider: luks2, cipher: aes-xts-plain64, keys: [{slot: 0, static: {passphrase: hush}}]"), true},
		"another cipher":          {hush, document("provider: luks2, cipher: aes-xts-plain, keys: [{slot: 0, static: {passphrase: hush}}]"), false},
		"faster":                  {hush, document("provider: luks2, options: [no_read_workqueue], keys: [{slot: 0, static: {passphrase: hush}}]"), true},
	} {
		was, is := configVolumes(t, tc.was, "v1.14.1")["EPHEMERAL"].Encryption, configVolumes(t, tc.is, "v1.14.1")["EPHEMERAL"].Encryption
		if got := is.Opens(was, nil); got != tc.opens {
			t.Errorf("%s: %t", name, got)
		}
		if shown := fmt.Sprint(was, is); strings.Contains(shown, "hush") || slices.Contains([]string{was.Keys[0], is.Keys[0]}, "x") {
			t.Errorf("%s shows %s", name, shown)
		}
	}
}
