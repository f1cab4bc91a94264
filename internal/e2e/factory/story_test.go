package factory

import (
	"bytes"
	"debug/pe"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"go.yaml.in/yaml/v4"
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

// teller runs recast in a directory and prints the story.
type teller struct {
	t       *testing.T
	binary  string
	dir     string
	env     []string
	chapter int
}

func (s *teller) tell(format string, args ...any) {
	s.chapter++
	fmt.Fprintf(s.t.Output(), "\n%d. %s\n", s.chapter, fmt.Sprintf(format, args...))
}

func (s *teller) notes(format string, args ...any) {
	fmt.Fprintf(s.t.Output(), "   # %s\n", fmt.Sprintf(format, args...))
}

// typed runs recast to its end, requires an exit code, and returns the whole output.
func (s *teller) typed(want int, args ...string) (said string, took time.Duration) {
	s.t.Helper()
	c := s.recast(args...)
	var b bytes.Buffer
	c.Stdout, c.Stderr = &b, &b
	began := time.Now()
	got := exitCode(c.Run())
	took = time.Since(began)
	fmt.Fprintf(s.t.Output(), "   $ recast %s\n", strings.Join(args, " "))
	for line := range strings.Lines(b.String()) {
		if !progress.MatchString(line) {
			fmt.Fprintf(s.t.Output(), "   %s\n", strings.TrimRight(line, "\n"))
		}
	}
	fmt.Fprintf(s.t.Output(), "   # exit code %d, %.2f s\n", got, took.Seconds())
	if got != want {
		s.t.Fatalf("recast %s: exit code %d, want %d", strings.Join(args, " "), got, want)
	}
	return b.String(), took
}

// progress matches lines to leave out of the story.
var progress = regexp.MustCompile(`· [0-9]+ MiB of [0-9]+ MiB\n$`)

func (s *teller) recast(args ...string) *exec.Cmd {
	c := exec.CommandContext(s.t.Context(), s.binary, args...)
	c.Dir = s.dir
	c.Env = append(append(os.Environ(), "NO_COLOR=1"), s.env...)
	return c
}

func exitCode(err error) int {
	if err == nil {
		return 0
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode()
	}
	return -1
}

// says requires texts in an output.
func (s *teller) says(said string, texts ...string) {
	s.t.Helper()
	for _, text := range texts {
		if !strings.Contains(said, text) {
			s.t.Fatalf("it does not say %q:\n%s", text, said)
		}
	}
}

// lab starts a simulated datacentre in a separate process, and changes to its directory:
// it has a Proxmox and a cluster, with credentials.
func (s *teller) lab() {
	s.t.Helper()
	dir := filepath.Join(s.t.TempDir(), "lab")
	s.dir = filepath.Dir(dir)
	c := s.recast("lab", "up", "--dir", dir, "--speed", "100")
	c.Cancel = func() error { return c.Process.Signal(os.Interrupt) }
	var b bytes.Buffer
	c.Stdout, c.Stderr = &b, &b
	mustDo(s.t, c.Start())
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	s.t.Cleanup(func() { <-ended }) // the test's context has ended by then
	for range 600 {
		if _, err := os.Stat(filepath.Join(dir, "lab.json")); err == nil {
			s.dir = dir
			break
		}
		select {
		case err := <-ended:
			ended <- err
			s.t.Fatalf("the lab has ended: %v\n%s", err, &b)
		case <-time.After(100 * time.Millisecond):
		}
	}
	if s.dir != dir {
		s.t.Fatal("the lab is not ready after a minute")
	}
	for line := range strings.Lines(s.read("env")) {
		if setting, is := strings.CutPrefix(strings.TrimSpace(line), "export "); is {
			s.env = append(s.env, strings.ReplaceAll(setting, "'", ""))
		}
	}
}

func (s *teller) read(name string) string {
	s.t.Helper()
	return s.readFrom(s.dir, name)
}

func (s *teller) readFrom(dir, name string) string {
	s.t.Helper()
	return string(must(os.ReadFile(filepath.Join(dir, name)))(s.t))
}

func (s *teller) write(name, content string) {
	s.t.Helper()
	write(s.t, filepath.Join(s.dir, name), []byte(content))
}

// replace edits the configuration, which must contain old.
func (s *teller) replace(old, fresh string) {
	s.t.Helper()
	text := s.read("recast.yaml")
	if !strings.Contains(text, old) {
		s.t.Fatalf("recast.yaml does not hold %q:\n%s", old, text)
	}
	s.write("recast.yaml", strings.Replace(text, old, fresh, 1))
}

// rebuildsTheISO makes the factory lose its cache. It rebuilds the boot ISO, which never has the same bytes.
func (s *stage) rebuildsTheISO() {
	s.tell("The factory's cache is lost, and recast's: the boot ISO is rebuilt with other bytes and the same content")
	before := s.lock().Schematics
	s.core.forgets(s.t, "factory/cache")
	s.losesISO("storage")
	said, _ := s.typed(0, "publish", "--only", "build")
	s.verified++
	was, is := before["storage"], s.lock().Schematics["storage"]
	if is.ISO.SHA256 == was.ISO.SHA256 {
		s.t.Fatal("the factory has built the same bytes: nothing is shown by that")
	}
	s.says(said, "its content is as locked: its SHA-256 "+is.ISO.SHA256+" replaces "+was.ISO.SHA256+" in recast.lock")
	if got := fileSum(s.t, s.cachedISO("storage")); got != is.ISO.SHA256 {
		s.t.Fatalf("the lock has SHA-256 %s of an ISO that has %s", is.ISO.SHA256, got)
	}
	if is.ISO.Name != was.ISO.Name || is.BuildID != was.BuildID || is.SchematicID != was.SchematicID || is.Installer != was.Installer {
		s.t.Fatalf("more than the ISO's sum has changed: %+v → %+v", was, is)
	}
	if after := s.lock().Schematics["default"]; after.ISO != before["default"].ISO {
		s.t.Fatalf("of an ISO that was not lost there is %+v instead of %+v", after.ISO, before["default"].ISO)
	}
	recorded, images := s.read("recast.lock"), s.front.images.Load()
	s.typed(0, "publish", "--only", "build")
	if s.read("recast.lock") != recorded || s.front.images.Load() != images {
		s.t.Fatal("recast publish --only build does it again with nothing to do")
	}
}

// refusesAnotherISO makes a restarted replica build the ISO of the locked schematic: its name is the
// lock's, but the factory's cache key has the digest of the new extension.
func (s *stage) refusesAnotherISO() {
	s.tell("iscsi-tools is republished, and a restarted replica builds the ISO of the same schematic with it: its content differs")
	recorded := s.read("recast.lock")
	s.core.official(s.t, talosVersion, drbd(), ucode(), iscsiTools("2"), guestAgent())
	fresh := s.server.start(s.t)
	s.front.splits(s.t, s.factory, fresh)
	s.losesISO("storage")
	said, _ := s.typed(4, "publish", "--only", "build")
	s.refused++
	e := s.lock().Schematics["storage"]
	s.says(said, "the factory's boot ISO differs from the lock's (SHA-256 ", ", locked is "+e.ISO.SHA256+"), and so does its content: ", "iscsi-tools", e.extension(s.t, "iscsi-tools").Digest, "/"+patched, "recast runbook image-differs")
	if s.read("recast.lock") != recorded {
		s.t.Fatal("recast.lock was written")
	}
	if _, err := os.Stat(s.cachedISO("storage")); err == nil {
		s.t.Fatal("what was refused is in the cache")
	}

	s.notes("the list is taken back; the factory that has built the lock's ISO serves it still")
	s.core.official(s.t, talosVersion, drbd(), ucode(), iscsiTools("1"), guestAgent())
	s.front.leads(s.t, s.factory)
	fresh.stop(s.t)
	s.typed(0, "publish", "--only", "build")
	if s.read("recast.lock") != recorded || fileSum(s.t, s.cachedISO("storage")) != e.ISO.SHA256 {
		s.t.Fatal("the lock's own ISO was not taken as it is")
	}
}

// cachedISO is the path of the boot ISO of a schematic in recast's cache.
func (s *stage) cachedISO(schematic string) string {
	return filepath.Join(s.dir, ".recast/cache/iso", s.lock().Schematics[schematic].ISO.Name)
}

func (s *stage) losesISO(schematic string) {
	s.t.Helper()
	mustDo(s.t, os.Remove(s.cachedISO(schematic)))
}

func fileSum(t *testing.T, path string) string {
	t.Helper()
	b := must(os.ReadFile(path))(t)
	return checksum(b)
}

const kernelRelease = "6.18.5-talos"

// talosFiles writes the imager container's /usr/install: a Talos that can't boot, in the form that imager expects.
func talosFiles(t *testing.T, dir string) {
	t.Helper()
	for _, arch := range architectures {
		to := filepath.Join(dir, arch)
		write(t, filepath.Join(to, "vmlinuz"), kernel(t, arch))
		write(t, filepath.Join(to, "systemd-boot.efi"), executable(t, arch))
		write(t, filepath.Join(to, "systemd-stub.efi"), executable(t, arch))
		initramfs(t, filepath.Join(to, "initramfs.xz"), arch)
	}
}

// imagerImage is siderolabs/imager: the factory takes the files of both architectures from the amd64 one.
func imagerImage(t *testing.T, files string) v1.Image {
	t.Helper()
	var entries []entry
	for _, arch := range architectures {
		for _, name := range []string{"vmlinuz", "initramfs.xz", "systemd-boot.efi", "systemd-stub.efi"} {
			b := must(os.ReadFile(filepath.Join(files, arch, name)))(t)
			entries = append(entries, entry{name: "usr/install/" + arch + "/" + name, mode: 0o644, content: b})
		}
	}
	return image(t, "amd64", v1.Config{}, packed(t, entries...))
}

// installerBase is siderolabs/installer-base with two layers, of which imager replaces the second.
func installerBase(t *testing.T, talos string) v1.ImageIndex {
	t.Helper()
	return index(func(arch string) v1.Image {
		config := v1.Config{
			Entrypoint: []string{"/bin/installer"}, Env: []string{"VERSION=" + talos},
			Labels: map[string]string{"alpha.talos.dev/version": talos, "org.opencontainers.image.source": "https://github.com/siderolabs/talos"},
		}
		return image(t, arch, config,
			packed(t, directory("bin"), entry{name: "bin/installer", mode: 0o755, content: []byte("installer " + talos + " " + arch)}),
			packed(t, directory("usr"), directory("usr/install")))
	})
}

// kernel is also a UEFI program, like every Talos kernel. It has the x86 boot header, from which imager reads
// the release; an arm64 kernel has none. See internal/pkg/uki/kernel.go in siderolabs/talos.
func kernel(t *testing.T, arch string) []byte {
	t.Helper()
	const programHeaders = 0x1d8
	b := random("kernel "+arch, 256<<10)
	copy(b, executable(t, arch)[:programHeaders])
	if arch != "amd64" {
		return b
	}
	const setupSectors, versionAt = 4, 0x400
	b[0x1f1] = setupSectors
	copy(b[0x202:], "HdrS")
	binary.LittleEndian.PutUint16(b[0x20e:], versionAt)
	copy(b[versionAt+0x200:], kernelRelease+" (root@buildkitsandbox) #1 SMP\x00")
	return b
}

// executable is a PE32+ program with an .sbat section and no symbols, which is all that
// imager requires of systemd's stub.
func executable(t *testing.T, arch string) []byte {
	t.Helper()
	const page, sector, headers = 0x1000, 0x200, 0x200
	machine := uint16(pe.IMAGE_FILE_MACHINE_AMD64)
	if arch == "arm64" {
		machine = pe.IMAGE_FILE_MACHINE_ARM64
	}
	sections := []struct {
		name    string
		content string
	}{
		{".text", "\xf4\xeb\xfd"},
		{".sbat", "sbat,1,SBAT Version,sbat,1,https://github.com/rhboot/shim/blob/main/SBAT.md\nsystemd-stub,1,The systemd Developers,systemd,258,https://systemd.io/\n"},
	}
	var b bytes.Buffer
	dos := make([]byte, 0x80)
	copy(dos, "MZ")
	binary.LittleEndian.PutUint32(dos[0x3c:], uint32(len(dos)))
	b.Write(dos)
	b.WriteString("PE\x00\x00")
	put := func(v any) {
		mustDo(t, binary.Write(&b, binary.LittleEndian, v))
	}
	optional := pe.OptionalHeader64{
		Magic: 0x20b, ImageBase: 0x140000000, AddressOfEntryPoint: page, BaseOfCode: page, SectionAlignment: page, FileAlignment: sector,
		SizeOfImage: uint32(page * (len(sections) + 1)), SizeOfHeaders: headers, Subsystem: pe.IMAGE_SUBSYSTEM_EFI_APPLICATION, NumberOfRvaAndSizes: 16,
	}
	put(pe.FileHeader{
		Machine: machine, NumberOfSections: uint16(len(sections)), SizeOfOptionalHeader: uint16(binary.Size(optional)),
		Characteristics: pe.IMAGE_FILE_EXECUTABLE_IMAGE | pe.IMAGE_FILE_LARGE_ADDRESS_AWARE,
	})
	put(optional)
	for i, s := range sections {
		h := pe.SectionHeader32{
			VirtualSize: uint32(len(s.content)), VirtualAddress: uint32(page * (i + 1)), SizeOfRawData: sector,
			PointerToRawData: uint32(headers + sector*i), Characteristics: pe.IMAGE_SCN_CNT_INITIALIZED_DATA | pe.IMAGE_SCN_MEM_READ,
		}
		copy(h.Name[:], s.name)
		put(h)
	}
	for i, s := range sections {
		b.Write(make([]byte, headers+sector*i-b.Len()))
		b.WriteString(s.content)
	}
	b.Write(make([]byte, headers+sector*len(sections)-b.Len()))
	return b.Bytes()
}

// initramfs has Talos' root file system with the kernel's modules. It is big enough for
// the FAT32 of an ISO, for which mtools requires some 34 MB.
func initramfs(t *testing.T, to, arch string) {
	t.Helper()
	scratch := t.TempDir()
	root := filepath.Join(scratch, "root")
	modules := filepath.Join(root, "usr/lib/modules", kernelRelease)
	write(t, filepath.Join(modules, "modules.order"), []byte("kernel/drivers/net/dummy.ko\n"))
	write(t, filepath.Join(modules, "modules.builtin"), []byte("kernel/fs/squashfs/squashfs.ko\n"))
	write(t, filepath.Join(modules, "kernel/drivers/net/dummy.ko"), module("dummy", arch))
	padding := 36 << 20
	if arch != "amd64" { // no ISO is made for it
		padding = 1 << 20
	}
	write(t, filepath.Join(root, "usr/bin/machined"), random("machined "+arch, padding))
	write(t, filepath.Join(root, "usr/lib/os-release"), []byte("NAME=\"Talos\"\nID=talos\nVERSION_ID="+talosVersion+"\n"))
	write(t, filepath.Join(root, "sbin/init"), []byte("machined "+talosVersion+" "+arch+"\n"))
	run(t, scratch, "", "mksquashfs", root, "rootfs.sqsh", "-all-root", "-noappend", "-no-progress", "-quiet", "-comp", "zstd", "-Xcompression-level", "1")
	write(t, filepath.Join(scratch, "init"), []byte("init "+arch))
	run(t, scratch, "init\nrootfs.sqsh\n", "cpio", "-H", "newc", "--create", "--reproducible", "--quiet", "-R", "+0:+0", "-F", "initramfs.cpio")
	run(t, scratch, "", "zstd", "-1", "--quiet", "-f", "initramfs.cpio", "-o", to)
}

// module is an ELF object with the section that depmod reads.
func module(name, arch string) []byte {
	modinfo := []byte("license=GPL\x00name=" + name + "\x00vermagic=" + kernelRelease + " SMP mod_unload \x00depends=\x00")
	names := []byte("\x00.modinfo\x00.shstrtab\x00")
	machine := uint16(62) // EM_X86_64
	if arch == "arm64" {
		machine = 183 // EM_AARCH64
	}
	const header = 64
	var b bytes.Buffer
	put := func(values ...any) {
		for _, v := range values {
			_ = binary.Write(&b, binary.LittleEndian, v) // fixed sizes into memory
		}
	}
	sections := uint64(header + len(modinfo) + len(names))
	put([16]byte{0x7f, 'E', 'L', 'F', 2, 1, 1}, uint16(1), machine, uint32(1), uint64(0), uint64(0), sections, uint32(0), uint16(header), uint16(0), uint16(0), uint16(64), uint16(3), uint16(2))
	b.Write(modinfo)
	b.Write(names)
	section := func(name, kind uint32, flags, at, size uint64) {
		put(name, kind, flags, uint64(0), at, size, uint32(0), uint32(0), uint64(1), uint64(0))
	}
	section(0, 0, 0, 0, 0)
	section(1, 1, 2, header, uint64(len(modinfo)))
	section(10, 3, 0, uint64(header+len(modinfo)), uint64(len(names)))
	return b.Bytes()
}

// random are incompressible bytes, deterministic by seed.
func random(seed string, size int) []byte {
	var key [32]byte
	copy(key[:], seed)
	b := make([]byte, size)
	_, _ = rand.NewChaCha8(key).Read(b) // never fails
	return b
}

func write(t *testing.T, path string, content []byte) {
	t.Helper()
	mustDo(t, os.MkdirAll(filepath.Dir(path), 0o755))
	mustDo(t, os.WriteFile(path, content, 0o644))
}

func run(t *testing.T, dir, stdin, program string, args ...string) {
	t.Helper()
	c := exec.CommandContext(t.Context(), program, args...)
	c.Dir, c.Stdin = dir, strings.NewReader(stdin)
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", program, err, out)
	}
}

// lock is the part of recast.lock that the tests check.
type lock struct {
	SecureBootKey string            `yaml:"secureBootKey"`
	Schematics    map[string]locked `yaml:"schematics"`
}

type locked struct {
	BuildID     string            `yaml:"buildID"`
	SchematicID string            `yaml:"schematicID"`
	Schematic   string            `yaml:"schematic"`
	Installer   string            `yaml:"installer"`
	Signer      string            `yaml:"signer"`
	Extensions  []lockedExtension `yaml:"extensions"`
	ISO         struct {
		Name, SHA256 string
		SizeBytes    int64 `yaml:"sizeBytes"`
	} `yaml:"iso"`
	Disk struct {
		Name, SHA256 string
		SizeBytes    int64 `yaml:"sizeBytes"`
		DiskBytes    int64 `yaml:"diskBytes"`
	} `yaml:"disk"`
}

type lockedExtension struct {
	Name, Version, Digest string
	Explicit              bool
}

// extension finds an extension, which must be there once.
func (l locked) extension(t *testing.T, name string) lockedExtension {
	t.Helper()
	i := slices.IndexFunc(l.Extensions, func(e lockedExtension) bool { return e.Name == name })
	if i < 0 || slices.ContainsFunc(l.Extensions[i+1:], func(e lockedExtension) bool { return e.Name == name }) {
		t.Fatalf("%s is not locked once: %+v", name, l.Extensions)
	}
	return l.Extensions[i]
}

func (s *teller) lock() lock {
	s.t.Helper()
	var l lock
	mustDo(s.t, yaml.Unmarshal([]byte(s.read("recast.lock")), &l))
	return l
}

// guestAgentAt is where the guest agent's program is on a node.
const guestAgentAt = "usr/local/lib/containers/qemu-guest-agent/qemu-ga"

// pin is an official extension with a digest chosen by the user.
type pin struct {
	name, version, digest string
	listed                string // tag in the list of official extensions
	file, sum             string // where its content differs from the listed one's
}

// pins are iscsi-tools from before it was republished under its version, and an older version of the
// guest agent. The first is only in recast.yaml; the schematic's file names the other, too.
func (s *stage) pins(iscsiTools string) []pin {
	s.t.Helper()
	const version = "11.0.1"
	older := guestAgentOf(version).index(s.t)
	s.core.push(s.t, "siderolabs/qemu-guest-agent:"+version, older)
	return []pin{
		{"iscsi-tools", "v0.2.0", iscsiTools, "v0.2.0", patched, checksum(random("iscsid 1 amd64", 120<<10))},
		{"qemu-guest-agent", version, digestOf(s.t, older), guestAgent().version, guestAgentAt, checksum(random("qemu-ga "+version+" amd64", 300<<10))},
	}
}

// references are the pins as in recast.yaml.
func references(pins []pin) string {
	var b strings.Builder
	for _, p := range pins {
		b.WriteString(", 'ghcr.io/siderolabs/" + p.name + "@" + p.digest + "'")
	}
	return b.String()
}

func (s *stage) locksPins(schematic string, pins []pin) {
	s.t.Helper()
	for _, p := range pins {
		if e := s.lock().Schematics[schematic].extension(s.t, p.name); e.Version != p.version || e.Digest != p.digest || !e.Explicit {
			s.t.Fatalf("schematic %s is locked to %+v, pinned to %s@%s", schematic, e, p.name, p.digest)
		}
	}
}

// holdsPins requires the pins' content in an installer, which must differ from the listed one's.
func (s *stage) holdsPins(installer string, pins []pin) {
	s.t.Helper()
	for _, p := range pins {
		if listed := s.core.digest(s.t, "siderolabs/"+p.name+":"+p.listed); listed == "" || listed == p.digest {
			s.t.Fatalf("the list has %q of %s, which is pinned to %s: nothing is shown by that", listed, p.name, p.digest)
		}
		if got := built(s.t, installer, s.install, p.file); got != p.sum {
			s.t.Fatalf("%s does not hold /%s of %s@%s", installer, p.file, p.name, p.digest)
		}
		s.notes("zstd, cpio and unsquashfs find /%s of %s@%s", p.file, p.name, p.digest[:19])
	}
}

// isBehindAPrivateCA is another cluster's directory: its factory, the registry of extensions and that
// for installers have certificates of a private CA. The images exist already.
func (s *stage) isBehindAPrivateCA() {
	s.tell("Factory and registries with certificates of a private CA: nothing is asked of them until images.caFile names it")
	lab, mirror := s.dir, s.mirror
	defer func() { s.dir, s.mirror = lab, mirror }()
	s.dir, s.mirror = filepath.Join(lab, "private"), newDepot(s.t)
	ca := newAuthority(s.t)
	factory := s.server.startTLS(s.t, ca)
	registry := s.core.servesTLS(s.t, ca)
	config := strings.NewReplacer(
		s.front.url, factory.url, s.core.addr, registry, mirror.addr, s.mirror.servesTLS(s.t, ca),
		"  default: schematics/default.yaml\n", "", "schematic: default", "schematic: storage", "./talosconfig", "../talosconfig",
	).Replace(s.readFrom(lab, "recast.yaml"))
	trusting := strings.Replace(config, "images:\n", "images:\n  caFile: "+ca.file+"\n", 1)
	s.write("schematics/storage.yaml", s.readFrom(lab, "schematics/storage.yaml"))

	unknown := []string{"certificate signed by unknown authority", "hint: if your own CA has signed it, name that CA's certificate, a PEM file, in images.caFile", "runbook: recast runbook tls"}
	s.write("recast.yaml", config)
	said, _ := s.typed(1, "lock")
	s.says(said, append(unknown, "registry "+registry)...)
	s.write("recast.yaml", trusting)
	s.typed(0, "lock")
	s.write("recast.yaml", config)
	said, _ = s.typed(1, "publish", "--only", "build")
	s.says(said, append(unknown, "image factory "+factory.url)...)
	if e := s.lock().Schematics["storage"]; e.Installer != "" || e.ISO.SHA256 != "" {
		s.t.Fatalf("something was built: %+v", e)
	}
	s.write("recast.yaml", trusting)
	s.typed(0, "publish", "--only", "build")
	s.verified += 2
	s.typed(0, "publish")
	s.mirrored()
	factory.stop(s.t)
}
