package roll

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/rolling"
	"github.com/recast-sh/recast/internal/sim/must"
)

// files are those of one machine; nil: they may not be read.
type files map[string]string

func (f files) Files(ctx context.Context, _ netip.Addr, _ string, look func(context.Context, cluster.MachineFiles) error) error {
	if f == nil {
		return errors.New("PermissionDenied")
	}
	return look(ctx, f)
}

func (f files) List(_ context.Context, dir string, _ bool, each func(cluster.MachineFile) error) error {
	for name, text := range f {
		if strings.HasPrefix(name, dir+"/") {
			if err := each(cluster.MachineFile{Path: name, SizeBytes: int64(len(text))}); err != nil {
				return err
			}
		}
	}
	return nil
}

func (f files) Read(_ context.Context, name string, _ int64, w io.Writer) error {
	_, err := io.WriteString(w, f[name])
	return err
}

type namedNode struct {
	cluster.Kube
	id string
}

func (k namedNode) Node(context.Context, string) (cluster.KubeNode, error) {
	if k.id == "" {
		return cluster.KubeNode{}, cluster.ErrNotFound
	}
	return cluster.KubeNode{MachineID: k.id}, nil
}

// TestNamesNow: a machine's own files say its names; where they can't be read, its machine-id does.
func TestNamesNow(t *testing.T) {
	t.Parallel()
	const id = "4c4c4544004f5a10805ac7c04f4a3233"
	derived := []string{"its name for iSCSI is now iqn.2017-11.dev.talos:" + id, "its name for NVMe-oF is now " + cluster.InitiatorName(cluster.NVMeoF, id)}
	for name, tc := range map[string]struct {
		files files
		id    string
		want  []string
	}{
		"its files": {
			files{"/etc/iscsi/initiatorname.iscsi": "# by an extension\nInitiatorName=iqn.1993-08.org.debian:01:x\n", "/etc/nvme/hostnqn": "nqn.2014-08.org.nvmexpress:uuid:y"},
			id,
			[]string{"its name for iSCSI is now iqn.1993-08.org.debian:01:x", "its name for NVMe-oF is now nqn.2014-08.org.nvmexpress:uuid:y"},
		},
		"no such files":    {files{}, id, derived},
		"no names in them": {files{"/etc/iscsi/initiatorname.iscsi": "GenerateName=yes\n", "/etc/nvme/hostnqn": strings.Repeat("nqn.x", maxName)}, id, derived},
		"not readable":     {nil, id, derived},
		"nothing is known": {nil, "", []string{"its name for iSCSI is now unknown: see talosctl -n 10.0.0.21 read /etc/iscsi/initiatorname.iscsi", "its name for NVMe-oF is now unknown: see talosctl -n 10.0.0.21 read /etc/nvme/hostnqn"}},
	} {
		var said []string
		n := served{Files: tc.files, Node: &rolling.Node{
			Roll: &rolling.Roll{Kube: namedNode{id: tc.id}, Say: func(_, text string) { said = append(said, text) }},
			Plan: planning.NodePlan{Node: "wk1", Addr: netip.MustParseAddr("10.0.0.21"), Initiators: []string{cluster.ISCSI, cluster.NVMeoF}},
		}}
		n.Tell(t.Context(), "bring-up")
		must.Equal(t, name, strings.Join(tc.want, "\n"), strings.Join(said, "\n"))
	}
}
