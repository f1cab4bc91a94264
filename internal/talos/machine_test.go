package talos

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf16"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/cosi-project/runtime/pkg/state/impl/inmem"
	"github.com/cosi-project/runtime/pkg/state/impl/namespaced"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"github.com/siderolabs/talos/pkg/machinery/role"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/sim/network"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/talosapi"
	"github.com/recast-sh/recast/internal/sim/world"
)

func TestEncryption(t *testing.T) {
	t.Parallel()
	const legacy = "machine:\n  systemDiskEncryption:\n    state: {provider: luks2, keys: [{slot: 0, nodeID: {}}, {slot: 1, static: {passphrase: s3cret}}]}\n    ephemeral: {provider: luks2, keys: [{slot: 0, kms: {endpoint: 'https://kms'}}]}\n"
	doc := func(kind, name, keys string) string {
		return "---\napiVersion: v1alpha1\nkind: " + kind + "\nname: " + name + "\nencryption:\n  provider: luks2\n  keys:\n" + keys
	}
	cases := map[string]struct {
		config string
		want   []cluster.Encryption
	}{
		"none":                 {"machine: {type: worker}\n---\nkind: VolumeConfig\nname: EPHEMERAL\nprovisioning: {grow: true}\n", nil},
		"no encryption at all": {"machine: {systemDiskEncryption: {state: {}, ephemeral: null}}\n---\nkind: VolumeConfig\nname: EPHEMERAL\nencryption: {}\n", nil},
		"legacy": {legacy, []cluster.Encryption{
			{Volume: "EPHEMERAL", Keys: []string{"kms"}}, {Volume: "STATE", Keys: []string{"nodeID", "static"}},
		}},
		"documents": {
			"machine: {type: worker}\n" + doc("VolumeConfig", "EPHEMERAL", "  - slot: 0\n    tpm: {}\n    lockToState: true\n  - slot: 1\n    static: {passphrase: a}\n") +
				doc("UserVolumeConfig", "data", "  - slot: 0\n    nodeID: {}\n    lockToState: false\n") +
				doc("RawVolumeConfig", "block", "  - {slot: 0, kms: {endpoint: a}, lockToState: null}\n") +
				doc("SwapVolumeConfig", "swap", "  - {slot: 0, static: {passphrase: a}, nodeID: null}\n"),
			[]cluster.Encryption{
				{Volume: "EPHEMERAL", Keys: []string{"static", "tpm"}, LockToState: true},
				{Volume: "r-block", Keys: []string{"kms"}},
				{Volume: "s-swap", Keys: []string{"static"}},
				{Volume: "u-data", Keys: []string{"nodeID"}},
			},
		},
		"written once, used twice": {
			"machine:\n  systemDiskEncryption:\n    state: &e {provider: luks2, keys: [{slot: 0, nodeID: {}}]}\n    ephemeral: *e\n",
			[]cluster.Encryption{{Volume: "EPHEMERAL", Keys: []string{"nodeID"}}, {Volume: "STATE", Keys: []string{"nodeID"}}},
		},
		"of a newer Talos": {
			doc("TapeVolumeConfig", "x", "  - slot: 0\n    pin: {}\n    lockToState: true\n"),
			[]cluster.Encryption{{Volume: "TapeVolumeConfig/x", Keys: []string{"pin"}, LockToState: true}},
		},
	}
	for name, c := range cases {
		must.Equal(t, name, c.want, must.Get(encryptionOf(c.config))(t))
	}
	for name, config := range map[string]string{"no YAML": "a: [s3cret", "not as Talos has it": "kind: VolumeConfig\nencryption: {keys: s3cret}\n"} {
		err := must.Err(encryptionOf(config))
		must.Hold(t, err != nil && !strings.Contains(err.Error(), "s3cret"), "%s: err = %v", name, err)
	}
}

func TestConfigArgs(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		cmdline string
		want    []string
	}{
		"none":            {"talos.platform=nocloud console=ttyS0 talos.configuration=x xtalos.config=y talos.config talos.config= talos.config=none", nil},
		"a server":        {"talos.config=https://user:pass@seed.example:8080/c?uuid=${uuid}&token=s3cret quiet", []string{"talos.config=https://seed.example:8080"}},
		"an ISO":          {"talos.config=metal-iso", []string{"talos.config="}},
		"inline, early":   {"talos.config.inline=KLUv/QBYczNjcmV0 talos.config.inline=bW9yZQ talos.config.early=c2VjcmV0", []string{"talos.config.inline=", "talos.config.early="}},
		"SideroLink":      {"siderolink.api=grpc://omni.example:8090?jointoken=s3cret", []string{"siderolink.api=grpc://omni.example:8090"}},
		"in quotes":       {`"talos.config=http://seed.example/s3cret"`, []string{"talos.config=http://seed.example"}},
		"no URL":          {"talos.config=http://[s3cret", []string{"talos.config="}},
		"the same server": {"talos.config=http://a.example/1 talos.config=http://a.example/2", []string{"talos.config=http://a.example"}},
	}
	for name, c := range cases {
		must.Equal(t, name, c.want, configArgs(c.cmdline))
	}
}

// variable is an EFI variable with that text.
func variable(text string) []byte {
	b := []byte{7, 0, 0, 0}
	for _, unit := range utf16.Encode([]rune(text + "\x00")) {
		b = binary.LittleEndian.AppendUint16(b, unit)
	}
	return b
}

func TestLoaderEntry(t *testing.T) {
	t.Parallel()
	entry := variable("Talos-v1.14.1~1.efi")
	cases := map[string]struct {
		variable []byte
		want     string
	}{
		"an entry":          {entry, "talos-v1.14.1~1.efi"},
		"more behind it":    {append(variable("a.efi"), 'x', 0, 'y'), "a.efi"},
		"beyond one unit":   {variable("A😀.efi"), "a😀.efi"},
		"empty":             {variable(""), ""},
		"nothing":           {nil, ""},
		"no attributes":     {entry[:3], ""},
		"only attributes":   {entry[:4], ""},
		"cut off":           {entry[:len(entry)-2], ""},
		"half a unit":       {entry[:len(entry)-1], ""},
		"half a surrogate":  {[]byte{7, 0, 0, 0, 'a', 0, 0x3d, 0xd8, 0, 0}, ""},
		"swapped, no UTF16": {[]byte{7, 0, 0, 0, 0xff, 0xdf, 0, 0}, ""},
	}
	for name, c := range cases {
		must.Equal(t, name, c.want, loaderEntry(c.variable))
	}
}

// Every text is read back, and other input does no harm.
func FuzzLoaderEntry(f *testing.F) {
	f.Add("Talos-v1.14.1~1.efi", []byte{7, 0, 0, 0, 'a'})
	f.Fuzz(func(t *testing.T, text string, raw []byte) {
		loaderEntry(raw)
		text = strings.ToValidUTF8(text, "")
		if !strings.ContainsAny(text, "\x00\ufffd") {
			must.Equal(t, text, strings.ToLower(text), loaderEntry(variable(text)))
		}
	})
}

func encryptionOf(config string) ([]cluster.Encryption, error) {
	docs, err := parseDocuments([]byte(config))
	if err != nil {
		return nil, err
	}
	return encryption(docs)
}

// TestSecureBoot: a machine that does not report it does not count as one without.
func TestSecureBoot(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]*bool{"on": new(true), "off": new(false), "it does not say": nil} {
		s := machineWith(t)
		if want != nil {
			r := runtime.NewSecurityStateSpec(runtime.NamespaceName)
			r.TypedSpec().SecureBoot = *want
			s = machineWith(t, r)
		}
		var got cluster.Machine
		must.Do(t, readSecurity(t.Context(), s, &got))
		must.Equal(t, name, cluster.RunningSystem{SecureBoot: want}, got.RunningSystem)
	}
}

// machineWith is a connection to a machine with those resources.
func machineWith(t *testing.T, rs ...resource.Resource) session {
	t.Helper()
	st := state.WrapCore(namespaced.NewState(inmem.Build))
	for _, r := range rs {
		must.Do(t, st.Create(t.Context(), r))
	}
	return session{Client: &client.Client{COSI: st}, blank: true}
}

func TestClaimLayersInOrder(t *testing.T) {
	t.Parallel()
	var rs []resource.Resource
	var want []observe.ExtensionLayer
	for i := range 13 {
		id := strconv.Itoa(i)
		if i == 12 {
			id = "modules.dep"
		}
		r := runtime.NewExtensionStatus(runtime.NamespaceName, id)
		r.TypedSpec().Metadata.Name, r.TypedSpec().Metadata.ExtraInfo = "e"+id, "info"
		rs, want = append(rs, r), append(want, observe.ExtensionLayer{Name: "e" + id, ExtraInfo: "info"})
	}
	var got observe.Claims
	must.Do(t, claimLayers(t.Context(), machineWith(t, rs...), &got))
	must.Equal(t, "layers", want, got.Layers)
}

func TestClaimFactory(t *testing.T) {
	t.Parallel()
	r := runtime.NewImageFactorySchematic(runtime.NamespaceName, runtime.ImageFactorySchematicID)
	r.TypedSpec().SchematicID, r.TypedSpec().Flavor, r.TypedSpec().APIURL = "cafe", "Image Factory", "https://factory.example"
	var got, none observe.Claims
	must.Do(t, claimFactory(t.Context(), machineWith(t, r), &got))
	want := &observe.FactoryClaim{SchematicID: "cafe", Flavor: "Image Factory", URL: "https://factory.example"}
	must.Equal(t, "factory", want, got.Factory)
	err := claimFactory(t.Context(), machineWith(t), &none)
	must.Hold(t, none.Factory == nil && err == nil, "none: %+v, %v", none.Factory, err)
}

// TestClaimCmdline: of a command line only recast's own argument is kept.
func TestClaimCmdline(t *testing.T) {
	t.Parallel()
	for line, want := range map[string][]string{
		"talos.platform=metal siderolink.api=grpc://x?jointoken=s3cret recast.lock=sha256-a quiet": {"sha256-a"},
		`"recast.lock=sha256-a" recast.lock=sha256-b xrecast.lock=sha256-c`:                        {"sha256-a", "sha256-b"},
		"talos.platform=metal": nil,
	} {
		r := runtime.NewKernelCmdline()
		r.TypedSpec().Cmdline = line
		var got observe.Claims
		must.Do(t, claimCmdline(t.Context(), machineWith(t, r), &got))
		must.Equal(t, line, observe.BootClaims{Locks: want, Cmdline: true}, got.Booted)
	}
}

// A blank machine with a data disk is configured and becomes a node: everything that it reports on the way.
func TestBlankMachineBecomesNode(t *testing.T) {
	if testing.Short() {
		t.Skip("long: make stories")
	}
	inLab(t, func(t *testing.T, l *lab, c *Client) {
		ctx := t.Context()
		l.power("1F", workerUUID,
			drive("virtio0", "recast-1", 10, nil), drive("virtio1", "data-wk1", 20, talosapi.DataDisk("EPHEMERAL", []byte("precious"))))

		blank := l.maintenance(c, workerAddr)
		want := cluster.Machine{
			MachineStanding: cluster.MachineStanding{UUID: workerUUID, SKU: workerSKU, Stage: "maintenance", Ready: true},
			RunningSystem: cluster.RunningSystem{
				TalosVersion: labVersion, Arch: "amd64", Platform: "nocloud", SecureBoot: new(false), FromISO: true,
				Schematic:  cluster.SchematicEntry{ID: "cafe", YAML: image().SchematicYAML},
				Extensions: []cluster.ExtensionEntry{{Name: "iscsi-tools", Version: "v0.2.0"}, {Name: "qemu-guest-agent", Version: "10.0.2"}},
			},
			Disks: []cluster.MachineDisk{
				{Device: "vda", Serial: "recast-1", SizeBytes: 10 << 30, Blank: true}, {Device: "vdb", Serial: "data-wk1", SizeBytes: 20 << 30},
			},
			Volumes:        []cluster.Volume{{Device: "vdb1", Disk: "vdb", Label: "EPHEMERAL", Format: "xfs"}},
			VolumeStatuses: []cluster.VolumeStatus{{ID: "META", Type: "partition", Phase: "missing"}, {ID: "STATE", Type: "partition", Phase: "missing"}},
		}
		ignore := cmp.Options{
			cmpopts.IgnoreFields(cluster.Machine{}, "BootID", "Hostname"), cmpopts.IgnoreFields(cluster.MachineDisk{}, "BusPath"),
			cmpopts.IgnoreFields(cluster.RunningSystem{}, "Cmdline"), cmpopts.IgnoreFields(cluster.Volume{}, "PartitionUUID", "FilesystemUUID"),
		}
		must.Hold(t, !must.Get(cluster.ReadCompared(ctx, c, cpAddr))(t).FromISO, "a disk counts as an ISO")
		must.Equal(t, "blank machine", want, blank.Machine, ignore)
		must.Hold(t, blank.Volumes[0].PartitionUUID != "" && blank.Volumes[0].FilesystemUUID != "" && blank.Disks[0].BusPath == "/pci0000:00/0000:00:0a.0/virtio2",
			"not identified: %+v, %+v", blank.Volumes, blank.Disks)

		config := l.config(talosapi.Machine{Hostname: "other", Installer: "old"})
		patched := must.Get(c.PatchConfig(config, cluster.ConfigPatch{Installer: installer, Disk: blank.Disks[0], Hostname: "wk1"}))(t)
		must.Do(t, c.ApplyConfig(ctx, workerAddr, cluster.Proof{UUID: strings.ToUpper(workerUUID), SKU: workerSKU}, patched))
		node := await(t, func() (cluster.Machine, error) { return cluster.ReadMachine(ctx, c, workerAddr) },
			func(m cluster.Machine) bool { return m.Stage == "running" && m.Ready && m.BootEntry != "" })
		must.Hold(t, !node.FromISO, "an installed system runs from an ISO")
		// In maintenance mode Talos reports it since 1.14.
		must.Hold(t, node.BootID != "" && blank.BootID == "", "boot ID before %q, after %q", blank.BootID, node.BootID)
		must.Hold(t, node.Hostname == "wk1" && node.SystemDisk == "vda" && node.InstallImage == installer && !node.ControlPlane,
			"node = %+v", node)
		checkParts(t, c, node)
		i := len(node.Volumes) - 1
		data := blank.Volumes[0]
		data.ID, data.Phase, data.Mount = "EPHEMERAL", "ready", "/var"
		must.Equal(t, "data volume", data, node.Volumes[i])
		stored, err := c.MachineConfig(ctx, workerAddr)
		must.Hold(t, err == nil && bytes.Equal(stored, patched),
			"stored configuration has %d bytes, applied were %d; err = %v", len(stored), len(patched), err)
		members := await(t, func() ([]cluster.Member, error) { return c.Members(ctx) }, func(m []cluster.Member) bool { return len(m) == 2 })
		wantMembers := []cluster.Member{
			{Nodename: "cp1", Addresses: []netip.Addr{cpAddr}, ControlPlane: true}, {Nodename: "wk1", Addresses: []netip.Addr{workerAddr}},
		}
		must.Equal(t, "members", wantMembers, members, cmpopts.IgnoreFields(cluster.Member{}, "NodeID"), cmpopts.EquateComparable(netip.Addr{}))
	})
}

// checkParts: partial reads of a machine agree with the complete one.
func checkParts(t *testing.T, c *Client, node cluster.Machine) {
	t.Helper()
	ctx := t.Context()
	booted := cluster.Machine{MachineStanding: node.MachineStanding, RunningSystem: node.RunningSystem, BootID: node.BootID}
	compared := node
	compared.BootID, compared.Hostname, compared.Nodename, compared.ControlPlane, compared.TypeInit = "", "", "", false, false
	compared.Volumes, compared.PoolMembers, compared.Addresses = nil, nil, nil
	must.Equal(t, "system", compared, must.Get(cluster.ReadCompared(ctx, c, workerAddr))(t),
		cmpopts.IgnoreFields(cluster.MachineDisk{}, "Blank"), cmpopts.IgnoreFields(cluster.VolumeStatus{}, "Disk", "Mount"))
	must.Equal(t, "booted", booted, must.Get(cluster.ReadBooted(ctx, c, workerAddr))(t))
	must.Equal(t, "arrived", booted, must.Get(cluster.ReadArrived(ctx, c, workerAddr))(t))
	must.Equal(t, "arrived whole", node, must.Get(cluster.ReadArrivedWhole(ctx, c, workerAddr))(t), cmpopts.IgnoreFields(cluster.Machine{}, "Addresses"))
	first, errFirst := cluster.ReadForPlan(ctx, c, workerAddr)
	completed, err := first.Complete(ctx, c, workerAddr)
	must.Hold(t, errFirst == nil && err == nil && first.Volumes == nil && cmp.Equal(node, completed, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})),
		"completed (-machine +completed): %v, %v\n%s", errFirst, err, cmp.Diff(node, completed, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})))
	must.Equal(t, "install image", node.InstallImage, must.Get(c.InstallImage(ctx, workerAddr))(t))
	must.Hold(t, node.InstallImage != "", "no install image")
	must.Equal(t, "identity", cluster.MachineIdentity{UUID: node.UUID, Nodename: node.Nodename}, must.Get(cluster.ReadIdentity(ctx, c, workerAddr))(t))
	for _, addr := range []netip.Addr{cpAddr, workerAddr} {
		all, errAll := c.Kubernetes(ctx, addr)
		images, err := c.KubernetesImages(ctx, addr)
		must.Hold(t, errAll == nil && err == nil && images.UUID == all.UUID && images.Images == all.Images && images.Images.Kubelet != "",
			"images %+v of %+v: %v, %v", images, all, err, errAll)
	}
}

// What a machine must not be sent, or not by us, is not sent.
func TestApplyConfigRefuses(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab, c *Client) {
		ctx := t.Context()
		l.power("1F", workerUUID, drive("virtio0", "recast-1", 10, nil))
		shown := l.maintenance(c, workerAddr).Fingerprint
		secret := "hunter-two-is-a-secret"
		broken := append(l.config(talosapi.Machine{Hostname: "wk1", Installer: installer, InstallSerial: "recast-1"}), "---\nkind: "+secret+"\nx: "+secret+"\n"...)
		cases := map[string]struct {
			addr   netip.Addr
			who    cluster.Proof
			config cluster.Secret
			kind   fault.Kind
			want   string
		}{
			"another machine":  {workerAddr, cluster.Proof{UUID: cpUUID, SKU: workerSKU}, broken, fault.Refused, "nothing was applied"},
			"no UUID to go by": {workerAddr, cluster.Proof{SKU: workerSKU}, broken, fault.Refused, "nothing was applied"},
			"a false machine":  {workerAddr, cluster.Proof{UUID: workerUUID, SKU: "recast00"}, broken, fault.Refused, "not the SKU number that recast wrote"},
			"without a proof":  {workerAddr, cluster.Proof{UUID: workerUUID}, broken, fault.Refused, "which nobody has confirmed"},
			"another's paper":  {workerAddr, cluster.Proof{UUID: workerUUID, Confirmed: []string{"AAAA"}}, broken, fault.Refused, "which nobody has confirmed"},
			"configured":       {cpAddr, cluster.Proof{UUID: cpUUID, SKU: workerSKU}, broken, fault.Failed, "it asked for a certificate"},
			"Talos refuses it": {workerAddr, cluster.Proof{UUID: workerUUID, SKU: workerSKU}, broken, fault.Refused, "rejects the configuration"},
			"confirmed":        {workerAddr, cluster.Proof{UUID: workerUUID, Confirmed: []string{shown}}, broken, fault.Refused, "rejects the configuration"},
		}
		for name, cs := range cases {
			err := c.ApplyConfig(ctx, cs.addr, cs.who, cs.config)
			must.Hold(t, err != nil && strings.Contains(err.Error(), cs.want) && fault.KindOf(err) == cs.kind && strings.HasPrefix(err.Error(), cs.addr.String()),
				"%s: err = %v (kind %d)", name, err, fault.KindOf(err))
			must.Hold(t, err == nil || !strings.Contains(err.Error(), secret), "%s: a secret is in %v", name, err)
		}
		must.Hold(t, l.maintenance(c, workerAddr).Disks[0].Blank, "the disk is no longer blank")
	})
}

// A lost answer is distinguished from a refusal.
func TestApplyConfigLosesItsAnswer(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab, _ *Client) {
		ctx := t.Context()
		talosconfig := must.Get(l.cluster.Talosconfig(role.Admin, cpAddr.String()))(t)
		dialer := l.net.Dialer()
		c := l.clientWith(Options{Talosconfig: talosconfig, Dial: dialer.DialContext})
		l.power("1F", workerUUID, drive("virtio0", "recast-1", 10, nil))
		l.maintenance(c, workerAddr)
		l.rec.Hooks(nil, func(call record.Call) {
			if strings.HasSuffix(call.Method, "ApplyConfiguration") {
				dialer.Cut()
			}
		})
		err := c.ApplyConfig(ctx, workerAddr, cluster.Proof{UUID: workerUUID, SKU: workerSKU}, l.config(talosapi.Machine{Hostname: "wk1", Installer: installer}))
		must.FailIs(t, err, cluster.ErrLostAnswer)
	})
}

// TestReaderComparesTheRest: a talosconfig with the role os:reader reads what drift
// compares, except for the machine's configuration.
func TestReaderComparesTheRest(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab, admin *Client) {
		whole, err := cluster.ReadCompared(t.Context(), admin, cpAddr)
		must.Hold(t, err == nil && !whole.ConfigHidden && whole.InstallImage != "", "as os:admin: %+v, %v", whole, err)
		got := must.Get(cluster.ReadCompared(t.Context(), l.client(role.Reader), cpAddr))(t)
		whole.ConfigHidden, whole.InstallImage, whole.Configs, whole.Encryption, whole.NextBoot = true, "", cluster.Configs{}, nil, ""
		must.Equal(t, "as os:reader", whole, got)
	})
}

func TestReadErrors(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab, admin *Client) {
		ctx := t.Context()
		l.power("1F", workerUUID, drive("virtio0", "recast-1", 10, nil))
		l.maintenance(admin, workerAddr)
		other := must.Get(talosapi.NewCluster("other", "https://127.42.8.10:6443", labVersion, "v1.35.4"))(t)
		foreign := must.Get(other.Talosconfig(role.Admin, cpAddr.String(), "127.42.7.12:50001"))(t)
		stranger, reader := l.clientWith(Options{Talosconfig: foreign}), l.client(role.Reader)
		machine := func(c *Client, addr string) error {
			_, err := cluster.ReadMachine(ctx, c, netip.MustParseAddr(addr))
			return err
		}
		cases := map[string]struct {
			got  error
			want []string // in that order
			hint string
		}{
			"no machine":      {machine(admin, "127.42.7.99"), []string{"127.42.7.99", "no answer", "no route to host"}, ""},
			"not configured":  {machine(admin, workerAddr.String()), []string{workerAddr.String(), "certificate", "x509"}, "the machine was reset and has no configuration"},
			"other cluster":   {machine(stranger, cpAddr.String()), []string{cpAddr.String(), "x509"}, "another cluster"},
			"no admin":        {func() error { _, err := reader.MachineConfig(ctx, cpAddr); return err }(), []string{cpAddr.String(), "MachineConfigs", "may not"}, "os:admin"},
			"not blank":       {func() error { _, err := admin.MaintenanceMachine(ctx, cpAddr); return err }(), []string{cpAddr.String(), "it asked for a certificate"}, "configured already"},
			"every endpoint":  {func() error { _, err := stranger.Members(ctx); return err }(), []string{cpAddr.String(), "x509", "127.42.7.12:50001", "no route to host"}, "talosconfig"},
			"reader, machine": {machine(reader, cpAddr.String()), []string{cpAddr.String(), "boot_id", "may not"}, "os:admin"}, // a file, before 1.14
		}
		for name, c := range cases {
			if (c.got == nil) != (c.want == nil) {
				t.Errorf("%s: err = %v", name, c.got)
				continue
			}
			rest := ""
			if c.got != nil {
				rest = c.got.Error()
			}
			for _, want := range c.want {
				_, after, found := strings.Cut(rest, want)
				must.Hold(t, found, "%s: %q lacks %q", name, c.got, want)
				rest = after
			}
			if hints := strings.Join(fault.Hints(c.got), "; "); !strings.Contains(hints, c.hint) || strings.Contains(rest, "rpc error") {
				t.Errorf("%s: err = %v, hints = %s", name, c.got, hints)
			}
		}
	})
}

// A machine that accepts the connection and stays silent costs only the timeout; a cancelled call ends at once.
func TestDeadlines(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		l := newLab(t)
		silent := must.Get(l.net.Listen("127.42.7.66:50000"))(t)
		defer silent.Close()
		c := l.client(role.Admin)
		start := time.Now()
		must.Fail(t, must.Err(cluster.ReadMachine(t.Context(), c, netip.MustParseAddr("127.42.7.66"))), "gave up after 15s")
		must.Equal(t, "took", 15*time.Second, time.Since(start))
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		start = time.Now()
		must.FailIs(t, must.Err(cluster.ReadMachine(ctx, c, netip.MustParseAddr("127.42.7.66"))), context.Canceled)
		must.Equal(t, "took", time.Second, time.Since(start))
	})
}

// TestClocks: a certificate is not valid at the time of one side.
func TestClocks(t *testing.T) {
	type row struct {
		off        time.Duration // of the machine's clock
		text, hint string
	}
	must.Bubbles(t, map[string]row{
		"the machine is ahead":  {5 * time.Hour, "its certificate is not valid at this time, so its clock or ours is wrong: ", "compare the machine's clock"},
		"the machine is behind": {-5 * time.Hour, "our certificate is expired or not yet valid by its clock: ", "the machine's clock is wrong"},
	}, func(t *testing.T, c row) {
		l := newLab(t)
		l.fw.Trouble(9000, talosapi.Trouble{Clock: c.off})
		client := l.client(role.Admin)
		time.Sleep(time.Minute)
		_, err := cluster.ReadMachine(t.Context(), client, cpAddr)
		must.Fail(t, err, c.text)
		must.Contain(t, "hints", strings.Join(fault.Hints(err), "\n"), c.hint)
	})
}

const (
	workerUUID = "5ec0ffee-0000-4000-8000-00000000901f"
	workerSKU  = "recast0123456789abcdef0123456789abcdef"
	cpUUID     = "5ec0ffee-0000-4000-8000-00000000900b"
	installer  = "registry.example/installer@sha256:0000000000000000000000000000000000000000000000000000000000000001"
	labVersion = "v1.13.9"

	nextInstaller = "registry.example/installer@sha256:0000000000000000000000000000000000000000000000000000000000000002"
)

var (
	cpAddr     = netip.MustParseAddr("127.42.7.11")
	workerAddr = netip.MustParseAddr("127.42.7.31")
)

// lab is a running control plane, and what is needed to power machines on.
type lab struct {
	t       *testing.T
	net     *network.Network
	rec     *record.Recorder
	fw      *talosapi.Firmware
	cluster *talosapi.Cluster
	boots   artefact.Image // what is on the ISO of a machine that is switched on
}

func newLab(t *testing.T) *lab {
	t.Helper()
	c := must.Get(talosapi.NewCluster("lab", "https://127.42.7.10:6443", labVersion, "v1.35.4"))(t)
	l := &lab{t: t, net: network.Memory(), rec: record.New(), cluster: c, boots: image()}
	l.fw = talosapi.New(t.Context(), talosapi.Options{
		Network: l.net, Recorder: l.rec,
		Lease: func(mac string) (netip.Addr, bool) {
			addr, ok := map[string]netip.Addr{"0B": cpAddr, "1F": workerAddr}[mac]
			return addr, ok
		},
		PullInstaller: func(_ context.Context, ref, _ string) ([]byte, error) {
			img := image()
			switch ref {
			case installer:
			case nextInstaller:
				img.SchematicID = "beef"
			default:
				return nil, talosapi.ErrNoImage
			}
			return artefact.UKI(img)
		},
	})
	conf := l.config(talosapi.Machine{Hostname: "cp1", ControlPlane: true, Installer: installer, InstallSerial: "sys-cp1"})
	l.power("0B", cpUUID, drive("virtio0", "sys-cp1", 10, l.installed(conf)))
	return l
}

// inLab runs a test in a bubble once the control plane runs; the client is its administrator's.
func inLab(t *testing.T, test func(*testing.T, *lab, *Client)) {
	t.Helper()
	must.Bubble(t, func(t *testing.T) {
		l := newLab(t)
		c := l.client(role.Admin)
		l.running(c, cpAddr)
		test(t, l, c)
	})
}

func image() artefact.Image {
	return artefact.Image{
		TalosVersion: labVersion, Arch: "amd64", Platform: "nocloud", Cmdline: "talos.platform=nocloud",
		SchematicID: "cafe", SchematicYAML: "customization:\n    extraKernelArgs:\n        - recast.lock=sha256-1\n", SchematicAuthor: "Image Factory (http://127.0.0.1:8080)",
		Extensions: []artefact.Extension{
			{Name: "qemu-guest-agent", Version: "10.0.2"}, {Name: "modules.dep", Version: "6.18.0-talos"}, {Name: "iscsi-tools", Version: "v0.2.0"},
		},
	}
}

func drive(key, serial string, gib int64, content []byte) world.Drive {
	return world.Drive{Key: key, Serial: serial, SizeBytes: gib << 30, Media: world.NewMedia(content)}
}

// power switches a machine on until the test ends; off switches it off earlier.
func (l *lab) power(mac, uuid string, drives ...world.Drive) (off func()) {
	l.t.Helper()
	iso := must.Get(artefact.ISO(l.boots))(l.t)
	drives = append(drives, world.Drive{Key: "ide2", CDROM: true, SizeBytes: int64(len(iso)), Media: world.NewMedia(iso)})
	guest := l.fw.PowerOn(&world.Hardware{
		VMID: 9000, Name: mac, Host: "pve1", UUID: uuid, SKU: workerSKU, MACs: []string{mac}, Arch: "amd64", Memory: 4096, BootOrder: []string{"virtio0", "ide2"}, NVRAM: world.NewMedia(talosapi.NVRAM(image())),
		Drives: func() []world.Drive { return slices.Clone(drives) }, PowerOff: func() {},
	})
	off = sync.OnceFunc(guest.Kill)
	l.t.Cleanup(off)
	return off
}

func (l *lab) config(m talosapi.Machine) []byte {
	l.t.Helper()
	m.InstallDisk = "/dev/vda"
	return must.Get(l.cluster.MachineConfig(m))(l.t)
}

// installed is the system disk of cp1, the only member of etcd.
func (l *lab) installed(config []byte) []byte {
	l.t.Helper()
	b := must.Get(l.fw.Preinstalled(config, must.Get(artefact.UKI(image()))(l.t), false))(l.t)
	member := l.fw.FormEtcd(l.cluster, talosapi.EtcdPeer{Name: "cp1", Addr: cpAddr})[0]
	return must.Get(talosapi.WithEtcd(b, member))(l.t)
}

// client has a certificate of that role.
func (l *lab) client(r role.Role) *Client {
	l.t.Helper()
	return l.clientWith(Options{Talosconfig: must.Get(l.cluster.Talosconfig(r, cpAddr.String()))(l.t)})
}

func (l *lab) clientWith(o Options) *Client {
	l.t.Helper()
	if o.Dial == nil {
		o.Dial = l.net.Dialer().DialContext
	}
	c := must.Get(New(o))(l.t)
	l.t.Cleanup(func() { _ = c.Close() })
	return c
}

// await asks every second for at most five minutes.
func await[T any](t *testing.T, ask func() (T, error), good func(T) bool) T {
	t.Helper()
	var last string
	for range 300 {
		v, err := ask()
		if err == nil && good(v) {
			return v
		}
		last = fmt.Sprintf("%v, %v", v, err)
		time.Sleep(time.Second)
	}
	t.Fatal("gave up; last seen: " + last)
	panic("unreachable")
}

func (l *lab) running(c *Client, addr netip.Addr) cluster.Machine {
	l.t.Helper()
	return await(l.t, func() (cluster.Machine, error) { return cluster.ReadMachine(l.t.Context(), c, addr) },
		func(m cluster.Machine) bool { return m.Stage == "running" && m.Ready })
}

func (l *lab) maintenance(c *Client, addr netip.Addr) cluster.BlankMachine {
	l.t.Helper()
	return await(l.t, func() (cluster.BlankMachine, error) { return c.MaintenanceMachine(l.t.Context(), addr) },
		func(m cluster.BlankMachine) bool { return m.Stage == "maintenance" && m.Ready })
}
