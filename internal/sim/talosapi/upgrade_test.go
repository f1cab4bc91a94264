package talosapi_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf16"

	"github.com/google/go-cmp/cmp"
	"github.com/siderolabs/talos/pkg/machinery/api/common"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"github.com/siderolabs/talos/pkg/machinery/role"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/sim/talosapi"
)

// criSystem is where talosctl stores installers.
func criSystem() *common.ContainerdInstance {
	return &common.ContainerdInstance{Driver: common.ContainerDriver_CRI, Namespace: common.ContainerdNamespace_NS_SYSTEM}
}

func pull(ctx context.Context, c *client.Client, ref string) error {
	s, err := c.ImageClient.Pull(ctx, &machineapi.ImageServicePullRequest{Containerd: criSystem(), ImageRef: ref})
	for err == nil {
		_, err = s.Recv()
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// install runs a pulled installer and returns its exit code.
func install(ctx context.Context, c *client.Client, ref string) (code int32, err error) {
	s, err := c.LifecycleClient.Upgrade(ctx, &machineapi.LifecycleServiceUpgradeRequest{
		Containerd: criSystem(), Source: &machineapi.InstallArtifactsSource{ImageName: ref},
	})
	code = -1
	for err == nil {
		var m *machineapi.LifecycleServiceUpgradeResponse
		m, err = s.Recv()
		if exit, ok := m.GetProgress().GetResponse().(*machineapi.LifecycleServiceInstallProgress_ExitCode); ok {
			code = exit.ExitCode
		}
	}
	if errors.Is(err, io.EOF) {
		return code, nil
	}
	return code, err
}

func legacy(ctx context.Context, c *client.Client, ref string) (*machineapi.UpgradeResponse, error) {
	//lint:ignore SA1019 the only call of Talos 1.12
	return c.UpgradeWithOptions(ctx, client.WithUpgradeImage(ref))
}

// nextEntry is the firmware variable with the next boot entry.
func nextEntry(t *testing.T, c *client.Client) string {
	t.Helper()
	raw := must.Get(readFile(t.Context(), c, efivar))(t)
	var units []uint16
	for i := 4; i+1 < len(raw); i += 2 {
		units = append(units, uint16(raw[i])|uint16(raw[i+1])<<8)
	}
	name, ok := strings.CutSuffix(string(utf16.Decode(units)), "\x00")
	must.Hold(t, ok, "variable without a NUL at its end: %q", raw)
	return name
}

// efi is the firmware variables, the boot entries and META, without digests.
func efi(b *box) string {
	words := strings.Fields("EFI " + strings.TrimPrefix(talosapi.Describe(b.hw.NVRAM.Bytes()), "NVRAM ") + " of")
	for w := range strings.FieldsSeq(talosapi.Describe(b.drives[0].Media.Bytes())) {
		if w == "STATE" {
			break
		}
		if w == "EFI" {
			continue
		}
		if w = strings.Trim(w, "[],;"); len(w) != 16 || strings.Contains(w, ".") {
			words = append(words, w)
		}
	}
	return strings.Join(words, " ")
}

// mustInstall pulls and installs ref.
func mustInstall(t *testing.T, c *client.Client, ref string) {
	t.Helper()
	installs(t, c, ref, 0)
}

// installs pulls ref, and runs its installer, which ends with that exit code.
func installs(t *testing.T, c *client.Client, ref string, want int32) {
	t.Helper()
	must.Do(t, pull(t.Context(), c, ref))
	if code, err := install(t.Context(), c, ref); err != nil || code != want {
		t.Fatalf("exit code %d, err = %v", code, err)
	}
}

// reboot calls do, which reboots the machine, and waits until it is ready again.
func (l *lab) reboot(c *client.Client, do func() error) nodeFacts {
	l.t.Helper()
	before := facts(l.t, c).bootID
	must.Do(l.t, do())
	return l.rebooted(c, before)
}

// rebooted waits for a boot after before.
func (l *lab) rebooted(c *client.Client, before string) nodeFacts {
	l.t.Helper()
	for range 600 {
		time.Sleep(time.Second)
		if f, err := readFacts(l.t.Context(), c); err == nil && f.bootID != "" && f.bootID != before {
			l.awaitStage(c, runtime.MachineStageRunning)
			synctest.Wait() // the machine still writes to its disk
			return facts(l.t, c)
		}
	}
	l.t.Fatalf("the machine did not come back; screen: %q", l.lines(&l.screen))
	return nodeFacts{}
}

func TestUpgradeByLifecycleService(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		b, c := l.node(image("old"))
		old := facts(t, c)
		requireError(t, "an image that was never pulled", must.Err(install(t.Context(), c, newRef)), codes.Internal, "not found in containerd store")
		mustInstall(t, c, newRef)
		must.Equal(t, "installed but not rebooted", old, facts(t, c), cmp.AllowUnexported(nodeFacts{}))
		want(t, "next entry", nextEntry(t, c), "Talos-v1.13.9~1.efi")
		want(t, "disk", efi(b), `EFI boots Talos-v1.13.9~1.efi of Talos-v1.13.9.efi Talos-v1.13.9~1.efi META {"Upgrade":"Talos-v1.13.9.efi"}`)
		now := l.reboot(c, func() error { return c.Reboot(t.Context()) })
		must.Contain(t, "kernel arguments", now.cmdline, "lock=sha256-new")
		must.Equal(t, "after the reboot", []string{"schematic-new", "Talos-v1.13.9~1.efi", old.identity}, []string{now.schematic, now.entry, now.identity})
		want(t, "disk", efi(b), `EFI boots Talos-v1.13.9~1.efi of Talos-v1.13.9.efi Talos-v1.13.9~1.efi META`)
		must.Equal(t, "on the screen", 1, strings.Count(strings.Join(l.lines(&l.screen), "\n"), "removing fallback entry"))
		// the next one replaces the oldest, with the next number
		mustInstall(t, c, oldRef)
		want(t, "disk", efi(b), `EFI boots Talos-v1.13.9~2.efi of Talos-v1.13.9~1.efi Talos-v1.13.9~2.efi META {"Upgrade":"Talos-v1.13.9~1.efi"}`)
	})
}

func TestPowerLossDuringAnUpgrade(t *testing.T) {
	if testing.Short() {
		t.Skip("long: make stories")
	}
	must.Bubble(t, func(t *testing.T) {
		builds := map[string]int{}
		for after := time.Second; after < 16*time.Second; after += time.Second {
			l := newLab(t)
			b, c := l.node(image("old"))
			must.Do(t, pull(t.Context(), c, newRef))
			go func() {
				_, _ = install(t.Context(), c, newRef) // the machine goes down meanwhile
			}()
			time.Sleep(after)
			b.guest.Kill()
			b.on()
			l.running(cpAddr)
			synctest.Wait() // for its consequences
			c = l.client(cpAddr, role.Admin)
			now := facts(t, c)
			builds[now.schematic]++
			must.Contain(t, fmt.Sprintf("after a power loss after %s", after), efi(b)+"\n", "META\n") // without a fallback
			if now.schematic == "schematic-old" {
				mustInstall(t, c, newRef) // it is in the cache
			}
			b.guest.Kill()
		}
		must.Equal(t, fmt.Sprint("enough of each came up: ", builds), true, builds["schematic-old"] >= 5 && builds["schematic-new"] >= 3)
	})
}

func TestRollback(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		_, c := l.node(image("old"))
		requireError(t, "nothing to go back to", c.Rollback(t.Context()), codes.Unknown, "previous UKI not found")
		mustInstall(t, c, newRef)
		l.reboot(c, func() error { return c.Reboot(t.Context()) })
		now := l.reboot(c, func() error { return c.Rollback(t.Context()) })
		must.Equal(t, "after the rollback", []any{"schematic-old", "Talos-v1.13.9.efi"}, []any{now.schematic, now.entry})
		now = l.reboot(c, func() error { return c.Rollback(t.Context()) })
		must.Equal(t, "after another", "schematic-new", now.schematic)
	})
}

func TestTwoInstallsWithoutARebootBetween(t *testing.T) {
	each(t, map[string]string{
		"v1.13.9": "EFI boots Talos-v1.13.9~2.efi of Talos-v1.13.9~1.efi Talos-v1.13.9~2.efi META {\"Upgrade\":\"Talos-v1.13.9~1.efi\"}",
		"v1.14.1": "EFI boots Talos-v1.14.1.efi of Talos-v1.13.9.efi Talos-v1.14.1.efi META {\"Upgrade\":\"Talos-v1.13.9.efi\"}",
	}, func(t *testing.T, talos, disk string) {
		l := newLab(t)
		b, c := l.node(image("old"))
		mustInstall(t, c, newRef)
		l.installers["registry.example/newer:v1"] = version("newer", talos)
		mustInstall(t, c, "registry.example/newer:v1")
		want(t, "disk", efi(b), disk)
	})
}

func TestInstallerRefusesAVersionThatIsTooFar(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		b, c := l.node(image("old"))
		l.installers["registry.example/ancient:v1"] = version("ancient", "v1.9.0")
		before := efi(b)
		installs(t, c, "registry.example/ancient:v1", 1)
		want(t, "disk", efi(b), before)
	})
}

func TestUpgradeByMachineService(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		var l *lab
		l = newLab(t, func(o *talosapi.Options) {
			o.Drain = func(_ context.Context, node string) error {
				time.Sleep(7 * time.Second)
				l.note("drained %s", node)
				return nil
			}
			o.Uncordon = func(_ context.Context, node string) error { l.note("uncordoned %s", node); return nil }
		})
		_, c := l.node(image("old"))
		l.fw.BreakEtcd(9001, talosapi.EtcdFault{Down: true})
		time.Sleep(time.Minute)
		requireError(t, "with a sick etcd", must.Err(legacy(t.Context(), c, newRef)), codes.Unavailable, "error validating etcd for upgrade: ")
		l.fw.BreakEtcd(9001, talosapi.EtcdFault{})
		l.running(cpAddr)
		requireError(t, "an image that is not there", must.Err(legacy(t.Context(), c, "registry.example/none:v1")), codes.Unknown, "error validating installer image")
		now := l.reboot(c, func() error { _, err := legacy(t.Context(), c, newRef); return err })
		must.Equal(t, "after the upgrade", []any{"schematic-new", "Talos-v1.13.9~1.efi"}, []any{now.schematic, now.entry})
		synctest.Wait() // for the rest of the boot
		want := []string{"up cp1 v1.35.4 cp=true", "uncordoned cp1", "drained cp1", "down cp1", "up cp1 v1.35.4 cp=true", "uncordoned cp1"}
		must.Equal(t, "node", want, l.lines(&l.kubelets))
	})
}

func TestUpgradeOfAControlPlaneNeedsAllOfEtcd(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *quorum) {
		c := q.admin(1)
		q.kill("cp3")
		requireError(t, "with two members of three", must.Err(legacy(t.Context(), c, newRef)), codes.DeadlineExceeded, "is not healthy; all members must be healthy to perform an upgrade")
		mustInstall(t, c, newRef) // it does not check etcd
		q.boxes["cp3"].on()
		q.running(address(3))
		now := q.reboot(c, func() error { _, err := legacy(t.Context(), c, newRef); return err })
		must.Equal(t, "after the upgrade", "schematic-new", now.schematic)
	})
}

func TestStagedUpgradeHappensAtTheNextBoot(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		b, c := l.node(image("old"))
		now := l.reboot(c, func() error {
			//lint:ignore SA1019 only the old call can stage
			_, err := c.UpgradeWithOptions(t.Context(), client.WithUpgradeImage(newRef), client.WithUpgradeStage(true))
			return err
		})
		want(t, "after the upgrade", now.schematic+" "+efi(b), "schematic-new EFI boots Talos-v1.13.9~1.efi of Talos-v1.13.9.efi Talos-v1.13.9~1.efi META")
	})
}

// Before 1.13 etcd is checked even with preserve, and one of two members can't be upgraded.
func TestOldUpgradeLooksAtEtcd(t *testing.T) {
	each(t, map[string]codes.Code{"v1.12.6": codes.Unknown, "v1.13.9": codes.OK}, func(t *testing.T, talos string, code codes.Code) {
		q := newQuorumOf(t, 2, version("old", talos))
		//lint:ignore SA1019 the only call of Talos 1.12
		_, err := q.admin(1).UpgradeWithOptions(t.Context(), client.WithUpgradeImage(newRef), client.WithUpgradePreserve(true))
		requireError(t, "upgrade", err, code, "etcd member count(2) is insufficient to maintain quorum if upgrade commences")
	})
}

func TestTalos112HasNoLifecycleService(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		b, c := l.node(version("old", "v1.12.4"))
		requireError(t, "pull", pull(t.Context(), c, newRef), codes.Unimplemented, "")
		requireError(t, "install", must.Err(install(t.Context(), c, newRef)), codes.Unimplemented, "")
		now := l.reboot(c, func() error { _, err := legacy(t.Context(), c, newRef); return err })
		want(t, "version", now.version, "v1.13.9")
		want(t, "disk", efi(b), "EFI boots Talos-v1.13.9.efi of Talos-v1.12.4.efi Talos-v1.13.9.efi META")
	})
}

// Unused images are removed after an hour; a pull skips stored images.
func TestUnusedImagesAreRemoved(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		_, c := l.node(image("old"))
		for _, after := range []time.Duration{0, time.Hour, 20 * time.Minute} {
			time.Sleep(after)
			if after < time.Hour {
				_, err := install(t.Context(), c, newRef)
				requireError(t, after.String()+" after", err, codes.Internal, "not found in containerd store")
			}
			must.Do(t, pull(t.Context(), c, newRef))
		}
		mustInstall(t, c, newRef)
	})
}

func TestImageNames(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		const digest = "sha256:6f1ed002ab5595859014ebf0951522d9"
		l := newLab(t, func(o *talosapi.Options) {
			o.ResolveImage = func(context.Context, string) (string, error) { return digest, nil }
		})
		_, c := l.node(image("old"))
		l.installers["registry.example/i@"+digest] = image("new")
		l.installers["registry.example/i:v1"] = image("new")
		names := func() []string {
			s := must.Get(c.ImageClient.List(t.Context(), &machineapi.ImageServiceListRequest{Containerd: criSystem()}))(t)
			var all []string
			for {
				m, err := s.Recv()
				if err != nil {
					return all
				}
				all = append(all, m.GetName()+" "+m.GetDigest())
			}
		}
		must.Do(t, pull(t.Context(), c, "registry.example/i:v1@"+digest))
		canonical := []string{"registry.example/i@" + digest + " " + digest, digest + " " + digest}
		must.Equal(t, "after a pull by digest", canonical, names())
		requireError(t, "by tag and digest", must.Err(install(t.Context(), c, "registry.example/i:v1@"+digest)), codes.Internal, "")
		must.Do(t, pull(t.Context(), c, "registry.example/i:v1"))
		l.reboot(c, func() error { return c.Reboot(t.Context()) })
		must.Equal(t, "after a pull by tag and a reboot", []string{"registry.example/i:v1 " + digest, canonical[0], canonical[1]}, names())
		s := must.Get(c.ImageClient.List(t.Context(), &machineapi.ImageServiceListRequest{}))(t)
		must.Equal(t, "without a namespace", codes.InvalidArgument, status.Code(must.Err(s.Recv())))
	})
}

// silent says whether the machine's API is unreachable for d.
func (l *lab) silent(addr string, d time.Duration) bool {
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(time.Second) {
		if conn, err := l.net.Dialer().DialContext(l.t.Context(), "tcp", net.JoinHostPort(addr, "50000")); err == nil {
			_ = conn.Close()
			return false
		}
	}
	return true
}

func TestUpgradeToASystemThatRollsBack(t *testing.T) {
	each(t, map[string]string{"by schematic": "schematic-new", "by reference": newRef}, func(t *testing.T, _, broken string) {
		l := newLab(t)
		b, c := l.node(image("old"))
		l.fw.BreakImage(broken, talosapi.RollsBack)
		old := facts(t, c)
		mustInstall(t, c, newRef)
		now := l.reboot(c, func() error { return c.Reboot(t.Context()) })
		must.Equal(t, "now", []any{old.schematic, old.entry, false}, []any{now.schematic, now.entry, now.bootID == old.bootID})
		l.shows(`reverting failed upgrade, switching to "Talos-v1.13.9.efi"`)
		want(t, "disk", efi(b), "EFI boots Talos-v1.13.9.efi of Talos-v1.13.9.efi Talos-v1.13.9~1.efi META")
	})
}

func TestInstallerThatFails(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		b, c := l.node(image("old"))
		l.fw.BreakImage("schematic-new", talosapi.InstallerFails)
		before, old := efi(b), facts(t, c)
		installs(t, c, newRef, 1)
		must.Equal(t, "now", []any{old, before}, []any{facts(t, c), efi(b)}, cmp.AllowUnexported(nodeFacts{}))
		// the old upgrade call takes the node down in vain
		now := l.reboot(c, func() error { _, err := legacy(t.Context(), c, newRef); return err })
		must.Equal(t, "now", []any{old.schematic, before}, []any{now.schematic, efi(b)})
	})
}

func TestFreshInstallOfABrokenImage(t *testing.T) {
	each(t, map[string]talosapi.Defect{
		"hangs": talosapi.Hangs, "loops": talosapi.Loops, "has nothing to roll back to": talosapi.RollsBack, "installer fails": talosapi.InstallerFails,
	}, func(t *testing.T, _ string, defect talosapi.Defect) {
		l := newLab(t)
		l.fw.BreakImage("schematic-new", defect)
		b, open := l.blank(cpAddr, image("new"))
		apply(t, open, l.config(cp1(newRef)))
		time.Sleep(2 * time.Minute)
		must.Equal(t, "the API came up", false, !l.silent(cpAddr, 10*time.Minute))
		if defect != talosapi.InstallerFails {
			want(t, "disk", efi(b), "EFI boots Talos-v1.13.9.efi of Talos-v1.13.9.efi META")
		} else {
			l.shows("task failed with exit code 1", "Talos is already installed to disk") // rebooted from the ISO, it halts
		}
	})
}

func TestOneInstallerAtATime(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		_, c := l.node(image("old"))
		must.Do(t, pull(t.Context(), c, newRef))
		s := must.Get(c.LifecycleClient.Upgrade(t.Context(), &machineapi.LifecycleServiceUpgradeRequest{
			Containerd: criSystem(), Source: &machineapi.InstallArtifactsSource{ImageName: newRef},
		}))(t)
		must.Get(s.Recv())(t)
		requireError(t, "the second", must.Err(install(t.Context(), c, newRef)), codes.FailedPrecondition, "")
	})
}
