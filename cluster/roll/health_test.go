package roll

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/rolling"
	"github.com/recast-sh/recast/cluster/rolling/rollingtest"
	"github.com/recast-sh/recast/cluster/shape"
	"github.com/recast-sh/recast/internal/sim/must"
)

func vmOf(s *scene) serving { return serving{Node: s.Node} }

// moving has a VM that is to be migrated, with disks that both hosts see.
func moving(s *scene) {
	s.Plan.Strategy, s.Plan.Host = cluster.Reshape, "pve2"
	s.Plan.VM = shape.Differences{{Key: "host", Found: "pve1", Wanted: "pve2", When: shape.Live}}
	s.PX.SharedDisks = true
	s.PX.Change(101, func(vm *cluster.VM) { vm.QMP = "running" })
}

func at(host string) func(*scene) {
	return func(s *scene) { s.PX.Change(101, func(vm *cluster.VM) { vm.Host = host }) }
}

func vm(change func(*cluster.VM)) func(*scene) { return func(s *scene) { s.PX.Change(101, change) } }

// once servingCalls do when the VM has been migrated.
func once(do func(*scene)) func(*scene) {
	return func(s *scene) {
		s.PX.At = func() {
			if len(s.PX.Done) > 0 {
				s.PX.At = nil
				do(s)
			}
		}
	}
}

var servingCalls = map[string]rollingtest.Call{
	"migrate": {
		Do: func(s *scene, ctx context.Context) error { return vmOf(s).Steps()[0].Do(ctx) }, Ready: moving, Done: "migrate 101 to pve2",
		Deaf: []string{"Arrived", "Node", "PendingCertificates", "VM"}, // asked again while it waits
	},
	"go on": {
		Do: func(s *scene, ctx context.Context) error { return vmOf(s).Steps()[0].Do(ctx) }, Ready: rollingtest.All(moving, at("pve2")),
		Deaf: []string{"Arrived", "Node", "PendingCertificates", "VM"},
	},
	"migrated": {Do: func(s *scene, ctx context.Context) error {
		reason, err := vmOf(s).Steps()[0].Skip(ctx)
		if err == nil && reason != "" {
			err = errors.New("said " + reason)
		}
		return err
	}, Ready: rollingtest.All(moving, at("pve2")), Err: "said VM 101 runs on pve2", Deaf: []string{"Arrived", "Node", "PendingCertificates"}},
}

func TestGateServingCalls(t *testing.T) {
	t.Parallel()
	rollingtest.CheckCalls(t, rollingtest.NewScene, servingCalls)
}

func TestGateServingRows(t *testing.T) {
	t.Parallel()
	locked := vm(func(vm *cluster.VM) { vm.Lock = "backup" })
	off := vm(func(vm *cluster.VM) { vm.Running = false })
	paused := vm(func(vm *cluster.VM) { vm.QMP = "paused" })
	notReady := rollingtest.OnNode("wk1", func(k *cluster.KubeNode) { k.Ready = false })
	rebooted := func(s *scene) {
		s.Machine.BootID = "b2"
		rollingtest.OnNode("wk1", func(k *cluster.KubeNode) { k.BootID = "b2" })(s)
	}
	const done, forEver = "migrate 101 to pve2", time.Minute
	rollingtest.CheckRows(t, rollingtest.NewScene, servingCalls, []rollingtest.Row{
		{Do: "migrate", Change: at("pve3"), Err: "was on pve1 when the plan was made"},
		{Do: "migrate", Change: rollingtest.On(101, rollingtest.KV{"cores": "3"}), Err: "is no longer as it was when the plan was made"},
		{Do: "migrate", Change: locked, Err: "is locked (backup)"},
		{Do: "migrate", Change: rollingtest.NoQuorum, Err: "has no quorum"},
		{Do: "migrate", Change: func(s *scene) { s.PX.SharedDisks = false }, Err: "can no longer be migrated to pve2 as planned"},
		{Do: "migrate", Change: vm(func(vm *cluster.VM) { vm.HA = true }), Err: "Proxmox HA manages it"},
		{Do: "migrate", Change: off, Err: "it does not run"},
		{Do: "migrate", Change: rollingtest.Silent, Err: "read machine"},
		{Do: "migrate", Change: once(rebooted), Err: "was restarted while it was migrated", Done: done},
		{Do: "migrate", Change: once(func(s *scene) { s.PX.Set(101, rollingtest.KV{"smbios1": "uuid=other"}) }), Err: "is not the VM that was planned", Done: done},
		{Do: "migrate", Change: once(paused), Err: "last seen: VM 101 \"wk1\" on pve2 does not run", Done: done, Took: forEver},
		{Do: "migrate", Change: once(locked), Err: "last seen: VM 101 \"wk1\" on pve2, locked (backup)", Done: done, Took: forEver},
		{Do: "migrate", Change: once(notReady), Err: "last seen: its Node is not Ready", Done: done, Took: forEver},
		{Do: "migrate", Change: once(at("pve1")), Err: "last seen: VM 101 \"wk1\" on pve1", Done: done, Took: forEver},
		{Do: "migrate", Change: once(func(s *scene) { s.Machine.Stage = "booting" }), Err: "last seen: ", Done: done, Took: forEver},
		{Do: "go on", Change: rollingtest.NoQuorum},
		{Do: "migrated", Change: at("pve1")},
		{Do: "migrated", Change: locked},
		{Do: "migrated", Change: notReady},
		{Do: "migrated", Change: paused},
	}, "read machine", "was restarted", "last seen")
}

// TestServingSteps: what is changed while the node serves, in order.
func TestServingSteps(t *testing.T) {
	t.Parallel()
	host := shape.Difference{Key: "host", Wanted: "pve2", When: shape.Live}
	tags := shape.Difference{Key: "tags", Wanted: "talos", When: shape.Live}
	for name, c := range map[string]struct {
		ds   shape.Differences
		want string
	}{
		"none while it runs": {shape.Differences{{Key: "memory", When: shape.Off}, {Key: "bios", When: shape.Never}}, ""},
		"its host":           {shape.Differences{host}, " migrate"},
		"its tags":           {shape.Differences{tags}, " reshape-live"},
		"both":               {shape.Differences{tags, host}, " migrate reshape-live"},
	} {
		s := rollingtest.NewScene()
		s.Plan.VM = c.ds
		var got strings.Builder
		for _, step := range vmOf(s).Steps() {
			got.WriteString(" " + step.ID)
		}
		must.Equal(t, name, c.want, got.String())
	}
}

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
		"no names in them": {files{"/etc/iscsi/initiatorname.iscsi": "GenerateName=yes\n", "/etc/nvme/hostnqn": strings.Repeat("nqn.x", 4<<10)}, id, derived},
		"not readable":     {nil, id, derived},
		"nothing is known": {nil, "", []string{"its name for iSCSI is now unknown: see talosctl -n 10.0.0.21 read /etc/iscsi/initiatorname.iscsi", "its name for NVMe-oF is now unknown: see talosctl -n 10.0.0.21 read /etc/nvme/hostnqn"}},
	} {
		var said []string
		n := served{Files: tc.files, Node: &rolling.Node{
			Roll: &rolling.Roll{Kube: oneNode{node: cluster.KubeNode{Name: tc.id, MachineID: tc.id}}, Say: func(_, text string) { said = append(said, text) }},
			Plan: planning.NodePlan{Node: "wk1", Addr: netip.MustParseAddr("10.0.0.21"), Initiators: []string{cluster.ISCSI, cluster.NVMeoF}},
		}}
		n.Tell(t.Context(), "bring-up")
		must.Equal(t, name, strings.Join(tc.want, "\n"), strings.Join(said, "\n"))
	}
}
