package talosapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/siderolabs/talos/pkg/machinery/constants"

	"github.com/recast-sh/recast/internal/sim/artefact"
)

// labelEtcd is the volume that Talos 1.14 can keep etcd's data on; else it is on EPHEMERAL.
const labelEtcd = constants.EtcdDataVolumeID

var errNoEtcdVolume = errors.New("there is no volume for etcd's data yet")

// EtcdData is a member's data directory as it is on disk.
type EtcdData struct {
	Cluster, Member string // IDs, hexadecimal
	Name            string
	Learner         bool
}

// etcdMark stands in a partition's data between what its users wrote and etcd's directory.
var etcdMark = []byte("\x00" + constants.EtcdDataPath + ":")

// splitEtcd cuts a partition's data in two; d is nil if etcd's directory is empty.
func splitEtcd(data []byte) (users []byte, d *EtcdData) {
	i := bytes.LastIndex(data, etcdMark)
	if i < 0 || json.Unmarshal(data[i+len(etcdMark):], &d) != nil {
		return data, nil
	}
	return data[:i], d
}

// joinEtcd undoes splitEtcd.
func joinEtcd(users []byte, d *EtcdData) []byte {
	if d == nil {
		return users
	}
	b, err := json.Marshal(d)
	if err != nil {
		// Strings and a flag always have a JSON form.
		panic(fmt.Sprintf("talosapi: %v", err))
	}
	return bytes.Join([][]byte{users, etcdMark, b}, nil)
}

// etcdVolume is the partition that has etcd's data directory, or is to have it.
func etcdVolume(devs []device) (placed, bool) {
	if p, ok := locate(devs, labelEtcd); ok {
		return p, true
	}
	return locate(devs, labelEphemeral)
}

// etcdData reads the machine's data directory; nil if it is empty.
func (m *machine) etcdData() *EtcdData {
	p, ok := etcdVolume(m.devices())
	if !ok {
		return nil
	}
	_, d := splitEtcd(p.part.Data)
	return d
}

// writeEtcdData replaces the machine's data directory; nil empties it.
func (m *machine) writeEtcdData(d *EtcdData) error {
	p, ok := etcdVolume(m.devices())
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

// WithEtcd puts a member's data into the EPHEMERAL partition of a disk's bytes.
func WithEtcd(disk []byte, d EtcdData) ([]byte, error) {
	parsed, err := artefact.ReadDisk(disk)
	if err != nil {
		return nil, err
	}
	if _, ok := partition(parsed, labelEphemeral); !ok {
		return nil, fmt.Errorf("put etcd's data on the disk: it has no partition %s", labelEphemeral)
	}
	return artefact.WriteDisk(withEtcd(parsed, labelEphemeral, &d)), nil
}

// Lasting is what of a disk's bytes stays the same for as long as its data
// does: partitions, filesystems, what users wrote, and whose etcd data it has;
// that etcd itself writes on does not matter.
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
