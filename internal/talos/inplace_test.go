package talos

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/role"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/sim/talosapi"
)

// A control plane is upgraded in place, then rolled back: its state at each step,
// above all between the installation and the reboot.
func TestInPlace(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab, c *Client) {
		ctx := t.Context()
		before := l.running(c, cpAddr)
		if before.NextBoot == "" || before.NextBoot != before.BootEntry {
			t.Errorf("booted %q, next %q", before.BootEntry, before.NextBoot)
		}
		var said []string
		say := func(line string) { said = append(said, line) }
		if ok, err := c.PullInstaller(ctx, cpAddr, cpUUID, nextInstaller, say); !ok || err != nil || len(said) == 0 {
			t.Fatalf("supported = %t, err = %v, said %q", ok, err, said)
		}
		if reboots, err := c.Install(ctx, cpAddr, cpUUID, nextInstaller, "", say); reboots || err != nil {
			t.Fatalf("reboots = %t, err = %v", reboots, err)
		}
		pending := l.running(c, cpAddr)
		if pending.BootEntry != before.BootEntry || pending.NextBoot == before.NextBoot || pending.NextBoot != strings.ToLower(pending.NextBoot) {
			t.Errorf("installed: booted %q, next %q", pending.BootEntry, pending.NextBoot)
		}
		must.Do(t, c.Reboot(ctx, cpAddr, cpUUID, ""))
		upgraded := l.rebooted(c, before.BootID)
		if upgraded.BootEntry != pending.NextBoot || upgraded.NextBoot != pending.NextBoot || upgraded.Schematic.ID != "beef" {
			t.Errorf("upgraded: booted %q, next %q, schematic %s", upgraded.BootEntry, upgraded.NextBoot, upgraded.Schematic.ID)
		}
		must.Do(t, c.Rollback(ctx, cpAddr, cpUUID))
		if back := l.rebooted(c, upgraded.BootID); back.BootEntry != before.BootEntry || back.Schematic.ID != "cafe" {
			t.Errorf("rolled back: booted %q, schematic %s", back.BootEntry, back.Schematic.ID)
		}
	})
}

func (l *lab) rebooted(c *Client, bootID string) cluster.Machine {
	l.t.Helper()
	return await(l.t, func() (cluster.Machine, error) { return cluster.ReadMachine(l.t.Context(), c, cpAddr) },
		func(m cluster.Machine) bool { return m.Stage == "running" && m.Ready && m.BootID != bootID })
}

// The configuration of a node in use is replaced, and only by one that Talos accepts.
func TestReplaceConfig(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab, c *Client) {
		ctx := t.Context()
		before := l.running(c, cpAddr)
		config := must.Get(c.MachineConfig(ctx, cpAddr))(t)
		patched := must.Get(c.PatchConfig(config, cluster.ConfigPatch{Installer: nextInstaller}))(t)
		patched = append(patched, "---\napiVersion: v1alpha1\nkind: VolumeConfig\nname: EPHEMERAL\nencryption:\n  provider: luks2\n  keys:\n    - {slot: 0, tpm: {}, lockToState: true}\n"...)
		must.Do(t, c.ReplaceConfig(ctx, cpAddr, cpUUID, patched))
		stored, err := c.MachineConfig(ctx, cpAddr)
		if err != nil || !bytes.Equal(stored, patched) {
			t.Errorf("stored configuration differs from the applied one; err = %v", err)
		}
		now := l.running(c, cpAddr)
		if now.InstallImage != nextInstaller || now.BootID != before.BootID || before.Encryption != nil {
			t.Errorf("before %+v, after %+v", before, now)
		}
		encrypted := []cluster.Encryption{{Volume: "EPHEMERAL", Keys: []string{"tpm"}, LockToState: true}}
		must.Equal(t, "encryption", encrypted, now.Encryption)
	})
}

// The lab's etcd as the client sees it, complete and broken.
func TestEtcdOfTheLab(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab, c *Client) {
		ctx := t.Context()
		members, err := c.EtcdMembers(ctx, cpAddr)
		if err != nil || len(members) != 1 {
			t.Fatalf("members = %+v, err = %v", members, err)
		}
		want := []cluster.EtcdMember{{ID: members[0].ID, Name: "cp1", Peers: []string{"https://127.42.7.11:2380"}}}
		must.Equal(t, "members", want, members)
		status, err := c.EtcdStatus(ctx, cpAddr)
		if err != nil || status.MemberID != members[0].ID || status.Leader != members[0].ID || status.Version == "" || status.DBBytes == 0 || status.Errors != nil {
			t.Errorf("status = %+v, err = %v", status, err)
		}
		var whole bytes.Buffer
		if err := c.EtcdSnapshot(ctx, cpAddr, 42, &whole); err == nil || whole.Len() > 0 || !strings.Contains(err.Error(), "answers there now, not 2a") {
			t.Error(err)
		}
		if err := c.EtcdSnapshot(ctx, cpAddr, 0, &whole); err != nil || whole.Len() == 0 {
			t.Errorf("snapshot of %d bytes, err = %v", whole.Len(), err)
		}
		if err := c.EtcdForfeit(ctx, cpAddr, cpUUID); err == nil || !strings.Contains(err.Error(), "only one member") {
			t.Errorf("forfeit: err = %v", err)
		}
		l.fw.BreakEtcd(9000, talosapi.EtcdFault{NoSpace: true, Snapshot: talosapi.SnapshotBroken})
		status, err = c.EtcdStatus(ctx, cpAddr)
		if err != nil || !strings.Contains(strings.Join(status.Errors, "; "), "alarm NOSPACE on member cp1") {
			t.Errorf("status = %+v, err = %v", status, err)
		}
		var part bytes.Buffer
		if err := c.EtcdSnapshot(ctx, cpAddr, 0, &part); err == nil || part.Len() >= whole.Len() {
			t.Errorf("broken snapshot of %d of %d bytes, err = %v", part.Len(), whole.Len(), err)
		}
	})
}

// Before 1.13 maintenance mode is another service with other behaviour. Both report
// what recast needs from a blank machine.
func TestMaintenanceOfEachRelease(t *testing.T) {
	if testing.Short() {
		t.Skip("long: make stories")
	}
	type maintenance struct {
		arch   string
		bootID bool
	}
	each(t, map[string]maintenance{
		"v1.12.6": {"", false}, "v1.13.9": {"amd64", false}, "v1.14.1": {"amd64", true},
	}, func(t *testing.T, version string, want maintenance) {
		l := newLab(t)
		c := l.client(role.Admin)
		l.running(c, cpAddr)
		l.boots.TalosVersion = version
		l.power("1F", workerUUID, drive("virtio0", "recast-1", 10, nil))
		m := l.maintenance(c, workerAddr)
		got := cluster.RunningSystem{TalosVersion: m.TalosVersion, Arch: m.Arch, Platform: m.Platform, Schematic: m.Schematic, FromISO: m.FromISO}
		must.Equal(t, "system", cluster.RunningSystem{
			TalosVersion: version, Arch: want.arch, Platform: "nocloud", FromISO: true,
			Schematic: cluster.SchematicEntry{ID: "cafe", YAML: image().SchematicYAML},
		}, got)
		if m.UUID != workerUUID || len(m.Disks) != 1 || !m.Disks[0].Blank || (m.BootID != "") != want.bootID || len(m.Fingerprint) != 44 {
			t.Errorf("%+v", m)
		}
		config := l.config(talosapi.Machine{Hostname: "wk1.lab.internal", Installer: installer, InstallSerial: "recast-1"})
		must.Do(t, c.ApplyConfig(t.Context(), workerAddr, workerUUID, config))
		if m := l.running(c, workerAddr); m.Hostname != "wk1" || m.Nodename != "wk1" {
			t.Errorf("its name is %s, its node's %s", m.Hostname, m.Nodename)
		}
		if members, err := c.Members(t.Context()); err != nil || len(members) != 2 || members[1].Nodename != "wk1" {
			t.Errorf("members %+v, %v", members, err)
		}
	})
}

// read reads one file of the control plane.
func read(ctx context.Context, c *Client, name string, sizeBytes int64) (text string, err error) {
	var b bytes.Buffer
	err = c.Files(ctx, cpAddr, cpUUID, func(ctx context.Context, files cluster.MachineFiles) error {
		return files.Read(ctx, name, sizeBytes, &b)
	})
	return b.String(), err
}

// paths lists a directory of the control plane.
func paths(ctx context.Context, c *Client, dir string, deep bool) (list []string, err error) {
	err = c.Files(ctx, cpAddr, cpUUID, func(ctx context.Context, files cluster.MachineFiles) error {
		return files.List(ctx, dir, deep, func(f cluster.MachineFile) error {
			list = append(list, f.Path+" "+f.Mode.String()+" "+f.Link)
			return nil
		})
	})
	return list, err
}

func TestFiles(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab, c *Client) {
		ctx := t.Context()

		const name, text = "/proc/cmdline", "talos.platform=nocloud\n"
		must.Equal(t, "read", text, must.Get(read(ctx, c, name, int64(len(text))))(t))
		for what, test := range map[string]struct {
			size int64
			want string
		}{
			"too long":  {5, "127.42.7.11: read /proc/cmdline: it is longer than the 5 bytes listed"},
			"too short": {50, "127.42.7.11: read /proc/cmdline: it ended after 23 of 50 bytes"},
		} {
			if _, err := read(ctx, c, name, test.size); err == nil || err.Error() != test.want {
				t.Errorf("%s: %v", what, err)
			}
		}
		want := []string{
			"/usr/local/share/ca-certificates Lrwxrwxrwx /etc/ssl", "/usr/local/share/schematic drwxr-xr-x ", "/usr/local/share/schematic/cafe -rw-r--r-- ",
		}
		if got, err := paths(ctx, c, "/usr/local/share", true); !slices.Equal(got, want) || err != nil {
			t.Errorf("list: %q, %v", got, err)
		}
		if got, err := paths(ctx, c, "/usr/local/share", false); !slices.Equal(got, want[:2]) || err != nil {
			t.Errorf("list one level: %q, %v", got, err)
		}
		if _, err := paths(ctx, c, "/usr/none", true); !errors.Is(err, cluster.ErrNotFound) {
			t.Errorf("list a missing directory: %v", err)
		}

		reader := l.client(role.Reader)
		if _, err := read(ctx, reader, name, 23); err == nil || !strings.Contains(err.Error(), "it takes a talosconfig with the role os:admin to read a node's files: our talosconfig may not: not authorized") {
			t.Errorf("read as a reader: %v", err)
		}
		err := c.Files(ctx, cpAddr, workerUUID, func(context.Context, cluster.MachineFiles) error { return errors.New("it looked") })
		if fault.KindOf(err) != fault.Refused || !strings.HasSuffix(err.Error(), "none of its files was read") {
			t.Errorf("another machine: %v", err)
		}
		err = c.Files(ctx, netip.MustParseAddr("127.42.7.99"), cpUUID, func(ctx context.Context, files cluster.MachineFiles) error {
			return files.Read(ctx, name, 1, io.Discard)
		})
		if err == nil || errors.Is(err, cluster.ErrNotFound) {
			t.Errorf("a missing machine is not one without files: %v", err)
		}
	})
}

func TestClaims(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab, admin *Client) {
		want := observe.Claims{
			TalosVersion: labVersion, Arch: "amd64", Platform: "nocloud",
			Layers: []observe.ExtensionLayer{
				{Name: "qemu-guest-agent", Version: "10.0.2"},
				{Name: "iscsi-tools", Version: "v0.2.0"},
				{Name: "schematic", Version: "cafe", Author: "Image Factory (http://127.0.0.1:8080)", ExtraInfo: image().SchematicYAML},
				{Name: "modules.dep", Version: "6.18.0-talos"},
			},
			Booted: observe.BootClaims{Entry: "talos-v1.13.9.efi", Next: "talos-v1.13.9.efi", UKI: new(true), Cmdline: true},
		}
		for _, r := range []role.Role{role.Admin, role.Reader} {
			if r == role.Reader {
				want.Booted.Next = "" // it is in a file
			}
			must.Equal(t, string(r), want, must.Get(l.client(r).Claims(t.Context(), cpAddr, cpUUID))(t))
		}
		if _, err := l.client(role.Admin).Claims(t.Context(), cpAddr, workerUUID); fault.KindOf(err) != fault.Refused {
			t.Errorf("another machine: %v", err)
		}
	})
}

// TestTaken: only an address that stays silent is free.
func TestTaken(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab, admin *Client) {
		raw := must.Get(l.cluster.Talosconfig(role.Admin, "127.42.7.99:50000"))(t)
		c := l.clientWith(Options{Talosconfig: raw})
		if _, err := l.net.Listen("127.42.7.12:9999"); err != nil {
			t.Fatal(err)
		}
		for addr, want := range map[string]string{
			cpAddr.String(): "a host that answers at 127.42.7.11:50000", // and asks for a certificate
			"127.42.7.12":   "a host that refuses connections to 127.42.7.12:50000",
			"127.42.7.98":   "",
			"127.42.7.99":   "an endpoint of the talosconfig",
		} {
			must.Equal(t, addr, want, must.Get(c.Taken(t.Context(), netip.MustParseAddr(addr)))(t))
		}
	})
}

// TestTakenByNetworkErrors: the network's word about an address counts only if it is about that address.
func TestTakenByNetworkErrors(t *testing.T) {
	const proxy = "127.42.7.200:1080"
	failed := func(op, at string, err error) func(string) error {
		return func(to string) error {
			addr, _ := net.ResolveTCPAddr("tcp", cmp.Or(at, to))
			return &net.OpError{Op: op, Net: "tcp", Addr: addr, Err: err}
		}
	}
	type row struct {
		err     func(to string) error // nothing comes back at all
		taken   bool
		unknown bool
	}
	each(t, map[string]row{
		"silence":                {},
		"timeout":                {err: failed("dial", "", syscall.ETIMEDOUT)},
		"no such host":           {err: failed("dial", "", syscall.EHOSTUNREACH)},
		"refused":                {err: failed("dial", "", syscall.ECONNREFUSED), taken: true},
		"reset":                  {err: failed("dial", "", syscall.ECONNRESET), taken: true},
		"no network":             {err: failed("dial", "", syscall.ENETUNREACH), unknown: true},
		"forbidden":              {err: failed("dial", "", syscall.EACCES), unknown: true},
		"a proxy is not there":   {err: failed("dial", proxy, syscall.EHOSTUNREACH), unknown: true},
		"a proxy is silent":      {err: failed("dial", proxy, syscall.ETIMEDOUT), unknown: true},
		"a proxy finds no host":  {err: failed("socks connect", "", syscall.EHOSTUNREACH), unknown: true},
		"a proxy says something": {err: func(string) error { return errors.New("502 Bad Gateway") }, unknown: true},
	}, func(t *testing.T, _ string, c row) {
		l := newLab(t)
		raw := must.Get(l.cluster.Talosconfig(role.Admin, cpAddr.String()))(t)
		way := l.clientWith(Options{Talosconfig: raw, Dial: func(ctx context.Context, _, to string) (net.Conn, error) {
			if c.err != nil {
				return nil, c.err(to)
			}
			<-ctx.Done()
			addr, _ := net.ResolveTCPAddr("tcp", to)
			return nil, &net.OpError{Op: "dial", Net: "tcp", Addr: addr, Err: ctx.Err()}
		}})
		began := time.Now()
		by, err := way.Taken(t.Context(), netip.MustParseAddr("127.42.7.98"))
		if (by != "") != c.taken || (err != nil) != c.unknown || c.unknown && !strings.Contains(err.Error(), "check whether 127.42.7.98") || len(fault.Hints(err)) == 0 && c.unknown {
			t.Errorf("%q, %v, hints %q", by, err, fault.Hints(err))
		}
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("it took %s", took)
		}
	})
}
