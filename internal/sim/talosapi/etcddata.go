package talosapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/siderolabs/talos/pkg/machinery/constants"

	"github.com/recast-sh/recast/internal/sim/artefact"
)

// labelEtcd is the volume for etcd's data, if configured (Talos 1.14); else it is a directory on
// EPHEMERAL.
const labelEtcd = constants.EtcdDataVolumeID

var errNoEtcdVolume = errors.New("there is no volume for etcd's data yet")

// EtcdData is the content of a member's data directory.
type EtcdData struct {
	Cluster, Member string // IDs, hexadecimal
	Name            string
	Learner         bool
}

// etcdMark separates users' data and etcd's directory in a partition.
var etcdMark = []byte("\x00" + constants.EtcdDataPath + ":")

// splitEtcd splits a partition's data; d is nil if etcd's directory is empty.
func splitEtcd(data []byte) (users []byte, d *EtcdData) {
	i := bytes.LastIndex(data, etcdMark)
	if i < 0 || json.Unmarshal(data[i+len(etcdMark):], &d) != nil {
		return data, nil
	}
	return data[:i], d
}

// joinEtcd is the inverse of splitEtcd.
func joinEtcd(users []byte, d *EtcdData) []byte {
	if d == nil {
		return users
	}
	b, err := json.Marshal(d)
	if err != nil {
		// Strings and a flag always marshal.
		panic(fmt.Sprintf("talosapi: %v", err))
	}
	return bytes.Join([][]byte{users, etcdMark, b}, nil)
}

// etcdVolume is the partition for etcd's data directory: that of the configuration with which the machine booted, whatever
// partition has the label.
func (m *machine) etcdVolume() (placed, bool) {
	if apart := m.etcdApart.Load(); apart != nil && *apart {
		return locate(m.devices(), labelEtcd)
	}
	return locate(m.devices(), labelEphemeral)
}

// etcdData reads the machine's data directory; nil if it is empty.
func (m *machine) etcdData() *EtcdData {
	p, ok := m.etcdVolume()
	if !ok {
		return nil
	}
	_, d := splitEtcd(p.part.Data)
	return d
}

// writeEtcdData replaces the machine's data directory; nil empties it.
func (m *machine) writeEtcdData(d *EtcdData) error {
	p, ok := m.etcdVolume()
	if !ok {
		return errNoEtcdVolume
	}
	return m.rewrite(p.dev.Key, func(disk artefact.Disk) artefact.Disk { return withEtcd(disk, p.part.Label, d) })
}

func withEtcd(disk artefact.Disk, label string, d *EtcdData) artefact.Disk {
	return edited(disk, label, func(data []byte) []byte {
		users, _ := splitEtcd(data)
		return joinEtcd(users, d)
	})
}

// WithEtcd adds a member's data to the partition in a disk's content that etcd has its directory on: ETCD, else EPHEMERAL.
func WithEtcd(disk []byte, d EtcdData) ([]byte, error) {
	parsed, err := artefact.ReadDisk(disk)
	if err != nil {
		return nil, err
	}
	if _, ok := partition(parsed, labelEtcd); ok {
		return artefact.WriteDisk(withEtcd(parsed, labelEtcd, &d)), nil
	}
	if _, ok := partition(parsed, labelEphemeral); !ok {
		return nil, fmt.Errorf("put etcd's data on the disk: it has no partition %s", labelEphemeral)
	}
	return artefact.WriteDisk(withEtcd(parsed, labelEphemeral, &d)), nil
}

// Lasting is the part of a disk's content that does not change while its data survives:
// partitions, filesystems, users' data, and the identity of etcd's data, without etcd's
// own writes.
func Lasting(content []byte) string {
	disk, err := artefact.ReadDisk(content)
	if err != nil {
		return "foreign " + digest(content)
	}
	var b bytes.Buffer
	for _, p := range disk.Partitions {
		users, d := splitEtcd(p.Data)
		fmt.Fprintf(&b, "%s %s %s %s", p.Label, p.UUID, p.FilesystemUUID, digest(users))
		if d != nil {
			fmt.Fprintf(&b, " etcd member %s of %s", d.Member, d.Cluster)
		}
		b.WriteByte('\n')
	}
	return b.String()
}
