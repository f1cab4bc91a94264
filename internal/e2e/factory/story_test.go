package factory

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// talosVersion is that of the simulated datacentre.
const talosVersion = "v1.13.9"

// patched is the file in which the two builds of iscsi-tools differ.
const patched = "usr/local/sbin/iscsid"

// stage is the environment of the story.
type stage struct {
	*teller
	core, mirror *depot // the registry with Talos and the factory's images, and the user's own
	front        *front
	server       *factoryServer
	factory      *running
	install      string // directory with the imager container's /usr/install
	bin          string
	refused      int
	verified     int
}

// TestStory is one story, printed as it runs: an extension is republished under the same
// version, and only the locked content is built, mirrored, published and run.
func TestStory(t *testing.T) {
	s := newStage(t)
	s.setUp()
	s.builds()
	s.rebuildsTheISO()
	s.refusesAnotherISO()
	s.publishes()
	s.hasNothingToDo()
	s.isBehindAPrivateCA()
	digests := s.patchesUnderAStaleFactory()
	s.isLiedTo(digests)
	s.restartsTheFactory()
	s.signsForSecureBoot()
	s.signsInstallers()
	s.buildsHere(digests[0])
	s.rolls()
	s.t.Attr("images-verified", strconv.Itoa(s.verified))
	s.t.Attr("images-refused", strconv.Itoa(s.refused))
}

func newStage(t *testing.T) *stage {
	t.Helper()
	return &stage{teller: &teller{t: t, binary: absolute(t, *recastBinary)}, bin: programs(t)}
}

func (s *stage) setUp() {
	s.tell("A registry with Talos %s and four extensions, the real Image Factory before it, a simulated Proxmox", talosVersion)
	s.core, s.mirror, s.front = newDepot(s.t), newDepot(s.t), newFront(s.t)
	s.install = filepath.Join(s.t.TempDir(), "install")
	talosFiles(s.t, s.install)
	s.core.push(s.t, "siderolabs/imager:"+talosVersion, imagerImage(s.t, s.install))
	s.core.push(s.t, "siderolabs/installer-base:"+talosVersion, installerBase(s.t, talosVersion))
	s.core.official(s.t, talosVersion, drbd(), ucode(), iscsiTools("1"), guestAgent())
	s.server = newFactoryServer(s.t, s.core, s.core, s.front, s.bin)
	s.factory = s.server.start(s.t)
	s.front.leads(s.t, s.factory)
	s.notes("image-factory v1.4.0 answers after %.1f s at %s", s.factory.took.Seconds(), s.front.url)
	s.lab()
	s.configure()
	s.notes("the lab serves Proxmox and a cluster of three nodes: recast.yaml names the real factory")
}

// configure makes the lab's working directory use the real factory and registry.
func (s *stage) configure() {
	s.t.Helper()
	var lines []string
	for line := range strings.Lines(s.read("recast.yaml")) {
		switch {
		case strings.HasPrefix(line, "  factory: "):
			line = "  factory: " + s.front.url + "\n  signature: require\n"
		case strings.HasPrefix(line, "  extensions: "):
			line = "  extensions: " + s.core.addr + "/siderolabs\n  mirror: " + s.mirror.addr + "/acme/talos\n"
		}
		lines = append(lines, line)
	}
	s.write("recast.yaml", strings.Join(lines, ""))
	s.write("schematics/default.yaml", schematic("", "siderolabs/intel-ucode", "siderolabs/qemu-guest-agent"))
	s.write("schematics/storage.yaml", schematic("sd-boot", "siderolabs/drbd", "siderolabs/iscsi-tools", "siderolabs/qemu-guest-agent"))
	if err := os.Remove(filepath.Join(s.dir, "recast.lock")); err != nil { // the lab's own
		s.t.Fatal(err)
	}
}

// schematic is a schematic of the Image Factory. By default the boot ISO has two bootloaders: GRUB for BIOS, systemd-boot for
// UEFI.
func schematic(bootloader string, extensions ...string) string {
	text := "customization:\n"
	if bootloader != "" {
		text += "  bootloader: " + bootloader + "\n"
	}
	return text + "  systemExtensions:\n    officialExtensions:\n      - " + strings.Join(extensions, "\n      - ") + "\n"
}

func (s *stage) builds() {
	s.tell("Lock, and build: what the factory made is opened and compared with the locked extension images")
	s.typed(0, "lock")
	s.typed(0, "publish", "--only", "build")
	for name, e := range s.lock().Schematics {
		if e.Installer == "" || e.ISO.SHA256 == "" || e.Signer == "" {
			s.t.Fatalf("schematic %s was not built and verified: %+v", name, e)
		}
		s.verified += 2
	}
	s.holds(s.lock().Schematics["storage"].Installer, "1")
}

// holds requires that build of the differing file of iscsi-tools in an installer,
// extracted with programs other than recast.
func (s *stage) holds(installer, build string) {
	s.t.Helper()
	want := checksum(random("iscsid "+build+" amd64", 120<<10))
	if got := built(s.t, installer, s.install, patched); got != want {
		s.t.Fatalf("%s holds another /%s than build %s of iscsi-tools", installer, patched, build)
	}
	s.notes("zstd, cpio and unsquashfs find /%s of build %s of iscsi-tools in %s", patched, build, installer)
}

func (s *stage) publishes() {
	s.tell("Publish: the installers to the mirror, by digest and with their signatures, the boot ISOs to Proxmox")
	s.typed(0, "publish")
	s.mirrored()
}

// mirrored requires every installer of the lock in the mirror, complete and signed.
func (s *stage) mirrored() {
	s.t.Helper()
	for name, e := range s.lock().Schematics {
		_, digest, _ := strings.Cut(e.Installer, "@")
		tag := "acme/talos:" + talosVersion + "-" + e.BuildID[:12]
		if got := s.mirror.digest(s.t, tag); got != digest {
			s.t.Fatalf("%s names %q in the mirror, the lock has %s", tag, got, digest)
		}
		if e.Signer == "" { // not the factory's
			s.notes("%s: %s", tag, digest[:19])
			continue
		}
		signature := "acme/talos:" + strings.Replace(digest, ":", "-", 1) + ".sig"
		if s.mirror.digest(s.t, signature) == "" {
			s.t.Fatalf("the signature of %s is not in the mirror", name)
		}
		s.notes("%s: %s, both architectures, with its signature", tag, digest[:19])
	}
}

// hasNothingToDo runs all commands again.
func (s *stage) hasNothingToDo() {
	s.tell("The same again: nothing to do, nothing written, no content read, no build asked for")
	before := s.read("recast.lock")
	for _, stage := range []string{"lock", "publish --only build", "publish"} {
		content, writes, images := s.core.content.Load()+s.mirror.content.Load(), s.core.writes.Load()+s.mirror.writes.Load(), s.front.images.Load()
		_, took := s.typed(0, strings.Fields(stage)...)
		for try := 0; took > time.Second && try < 2; try++ { // the machine may have been busy
			_, took = s.typed(0, strings.Fields(stage)...)
		}
		content = s.core.content.Load() + s.mirror.content.Load() - content
		writes = s.core.writes.Load() + s.mirror.writes.Load() - writes
		images = s.front.images.Load() - images
		s.notes("requests: %d for content, %d that write, %d for images of the factory", content, writes, images)
		if stage == "lock" {
			content = 0 // it reads the list of extensions
		}
		if content > 0 || writes > 0 || images > 0 || took > time.Second {
			s.t.Errorf("recast %s has done something, or took too long, with nothing to do", stage)
		}
	}
	if s.read("recast.lock") != before {
		s.t.Error("recast.lock was written")
	}
}

// patchesUnderAStaleFactory republishes iscsi-tools under its version. The running factory
// still has the old list, so recast does not even request an image.
func (s *stage) patchesUnderAStaleFactory() (digests [2]string) {
	s.tell("iscsi-tools is republished under the same version; the running factory does not know it")
	digests[0] = s.core.digest(s.t, "siderolabs/iscsi-tools:v0.2.0")
	digests[1] = s.core.official(s.t, talosVersion, drbd(), ucode(), iscsiTools("2"), guestAgent())["iscsi-tools"]
	said, _ := s.typed(2, "lock", "--check")
	s.says(said, "iscsi-tools", digests[0], digests[1])
	said, _ = s.typed(0, "lock", "--update")
	s.says(said, "warning: ", "siderolabs/iscsi-tools", digests[0], digests[1])
	images := s.front.images.Load()
	said, _ = s.typed(4, "publish", "--only", "build")
	s.refused++
	s.says(said, "siderolabs/iscsi-tools", digests[0], digests[1], "restart")
	if s.front.images.Load() != images {
		s.t.Error("recast had the factory build what it was sure to refuse")
	}
	return digests
}

// isLiedTo has two replicas, one of them restarted: the list comes from one, the image
// from the other. The label is new, the content is old.
func (s *stage) isLiedTo(digests [2]string) {
	s.tell("Two replicas behind one address: the restarted one shows the new list, the other one builds")
	fresh := s.server.start(s.t)
	s.front.splits(s.t, fresh, s.factory)
	said, _ := s.typed(4, "publish", "--only", "build")
	s.refused++
	s.says(said, "iscsi-tools", digests[1], "/"+patched)
	e := s.lock().Schematics["storage"]
	s.holds(s.core.addr+"/factory/nocloud-installer/"+e.SchematicID+":"+talosVersion, "1")
	if e.Installer != "" || e.ISO.SHA256 != "" {
		s.t.Fatalf("what was refused is in the lock: %+v", e)
	}
	s.factory.stop(s.t)
	s.factory = fresh
}

// restartsTheFactory results in new content: the factory serves the installer under the
// new label unchanged for ever, so the image gets another label.
func (s *stage) restartsTheFactory() {
	s.tell("Every replica is restarted; what one of them built is still in the factory's cache")
	s.front.leads(s.t, s.factory)
	s.typed(4, "publish", "--only", "build")
	s.refused++
	s.typed(0, "lock", "--rebuild", "storage")
	s.typed(0, "publish", "--only", "build")
	s.verified += 2
	s.holds(s.lock().Schematics["storage"].Installer, "2")
	s.typed(0, "publish")
	s.mirrored()
}

// buildsHere adds an extension that no factory knows, and official ones with older digests than
// the listed ones, so that the Talos imager builds.
func (s *stage) buildsHere(olderTools string) {
	s.tell("An extension of one's own, and official ones pinned to older digests: the real Talos imager builds that image here")
	pins := s.pins(olderTools)
	idx := frr().index(s.t)
	s.core.push(s.t, "acme/frr:1.7.15", idx)
	s.replace("schematics:\n", "schematics:\n  bgp: {file: schematics/default.yaml, extensions: ['"+s.core.addr+"/acme/frr:1.7.15'"+references(pins)+"]}\n")
	s.replace("images:\n", "images:\n  imager: {command: ['"+s.imager()+"', '{out}']}\n")
	s.replace("name: wk2, schematic: storage", "name: wk2, schematic: bgp")
	said, _ := s.typed(0, "lock")
	s.says(said, "schematic bgp")
	if e := s.lock().Schematics["bgp"].Extensions; len(e) != 4 || e[1].Name != "frr" || e[1].Digest != digestOf(s.t, idx) || !e[1].Explicit {
		s.t.Fatalf("bgp is locked to %+v", e)
	}
	s.locksPins("bgp", pins)
	s.typed(0, "publish")
	s.verified += 2
	s.mirrored()
	e := s.lock().Schematics["bgp"]
	want := checksum(random("bgpd amd64", 200<<10))
	if got := built(s.t, e.Installer, s.install, "usr/local/lib/containers/frr/usr/lib/frr/bgpd"); got != want {
		s.t.Fatal("the installer of bgp does not hold frr as it was published")
	}
	s.holdsPins(e.Installer, pins)
	s.typed(0, "lock", "--update")
	s.locksPins("bgp", pins)
	s.hasNothingToDo()
}

// imager is a program with one argument that runs the imager as its container does.
func (s *stage) imager() string {
	s.t.Helper()
	script := filepath.Join(s.bin, "imager")
	text := fmt.Sprintf("#!/bin/sh\nexport SOURCE_DATE_EPOCH=1559424892 PATH='%s':\"$PATH\"\nexec '%s' imager '%s' \"$1\"\n", s.bin, absolute(s.t, *realBinary), s.install)
	mustDo(s.t, os.WriteFile(script, []byte(text), 0o755))
	return script
}

// rolls rolls the simulated machines to what the real factory and imager have built.
func (s *stage) rolls() {
	s.tell("Roll: the simulated machines boot these very ISOs and installers")
	s.typed(2, "drift")
	s.typed(0, "roll", "--yes")
	s.typed(0, "drift")
	s.typed(0, "drift", "--deep")
	for _, node := range []string{"cp1", "wk1", "wk2"} {
		s.typed(0, "drift", "--explain", node)
	}
	s.typed(0, "lab", "check", "--dir", ".")
}
