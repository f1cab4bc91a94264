package images

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/images/verify"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/heap"
	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/schematics"
)

// The kernel arguments of Talos on nocloud.
const (
	installerArgs = "talos.platform=nocloud console=tty1 console=ttyS0 net.ifnames=0 slab_nomerge pti=on consoleblank=0 " +
		"printk.devkmsg=on selinux=1 module.sig_enforce=1 proc_mem.force_override=never"
	isoArgs = "talos.platform=nocloud console=tty1 console=ttyS0 net.ifnames=0 talos.halt_if_installed=1 slab_nomerge pti=on consoleblank=0 " +
		"printk.devkmsg=on selinux=1 module.sig_enforce=1 proc_mem.force_override=never"
)

func hash(data []byte) string {
	s := sha256.Sum256(data)
	return hex.EncodeToString(s[:])
}

func digest(text string) string { return "sha256:" + hash([]byte(text)) }

const agent = "siderolabs/qemu-guest-agent"

func list(digest string) []schematics.OfficialExtension {
	return []schematics.OfficialExtension{{Name: agent, Version: "1.0", Ref: "ghcr.io/" + agent, Digest: digest}}
}

type catalog []schematics.OfficialExtension

func (c catalog) Official(context.Context, string) ([]schematics.OfficialExtension, error) {
	return c, nil
}

// described has every extension image, as a version 1.0 that is named like its repository.
type described struct{}

func (described) Digest(context.Context, string) (string, bool, error) { return "", false, nil }

func (described) Describe(_ context.Context, ref, arch string) (schematics.ExtensionImage, error) {
	repository, _, _ := strings.Cut(ref, "@")
	return schematics.ExtensionImage{Architectures: []string{arch}, Name: path.Base(repository), Version: "1.0"}, nil
}

// lockOf resolves schematics "default", with one extension, and "plain", with none.
func lockOf(t testing.TB) schematics.Lock {
	t.Helper()
	l, _, err := schematics.Resolve(t.Context(), schematics.Request{
		Talos: "v1.13.9", Arch: "amd64", Platform: "nocloud",
		Files: map[string]schematics.File{
			"default": {Path: "default.yaml", Data: []byte("customization: {systemExtensions: {officialExtensions: [" + agent + "]}}\n")},
			"plain":   {Path: "plain.yaml", Data: []byte("customization: {}\n")},
		},
	}, schematics.Sources{Catalog: catalog(list(digest("one"))), Images: described{}})
	must.Do(t, err)
	return l
}

// factory builds images of registered schematics, and is the registry of its installers and of the extension images.
type factory struct {
	extensions []schematics.OfficialExtension
	schematics map[string]string // by ID
	salt       string            // changes the bytes of the same build
	wrongID    string
	announce   func(size int64) int64
	sent       func(iso []byte) []byte
	fail       error
	key        []byte // that it publishes
	sign       func(digest string) []Signature
	// built changes the content of an "installer", an "iso" or a "disk" before it is made.
	built func(what string, img *artefact.Image)
	files map[string][]byte // of the extension; nil: agentExtension's
	// packed changes the content of an installer's tar.
	packed func(files map[string][]byte)

	downloads, registrations int
	pulls                    []string // references
}

func newFactory() *factory {
	return &factory{
		extensions: list(digest("one")), schematics: map[string]string{},
		announce: func(size int64) int64 { return size },
		sent:     func(iso []byte) []byte { return iso },
		sign:     func(string) []Signature { return nil },
		built:    func(string, *artefact.Image) {},
		packed:   func(map[string][]byte) {},
	}
}

func (f *factory) Extensions(context.Context, string) ([]schematics.OfficialExtension, error) {
	return f.extensions, f.fail
}

// It has no overlays, marks no version and signs nothing for Secure Boot.
func (f *factory) Overlays(context.Context, string) ([]schematics.OfficialOverlay, error) {
	return nil, f.fail
}

func (f *factory) Broken(context.Context) ([]string, error) { return nil, f.fail }

func (f *factory) SecureBootCertificate(context.Context) ([]byte, error) {
	return nil, fault.Configf("secure boot is disabled")
}

func (f *factory) Knows(_ context.Context, id string) (bool, error) {
	_, ok := f.schematics[id]
	return ok, f.fail
}

func (f *factory) Register(_ context.Context, canonical string) (id, stored string, err error) {
	f.registrations++
	if f.wrongID != "" {
		return f.wrongID, canonical, f.fail
	}
	id = hash([]byte(canonical))
	f.schematics[id] = canonical
	return id, canonical, f.fail
}

func (f *factory) SigningKey(context.Context) ([]byte, error) { return f.key, f.fail }

// agentExtension is the extension of that digest: its content identifies it.
func agentExtension(digest string) artefact.Extension {
	return artefact.Extension{
		Name: "qemu-guest-agent", Version: "1.0", Author: "Sidero Labs", Description: "an agent",
		Files: map[string][]byte{
			"/usr/local/bin/qemu-ga":                 []byte("agent " + digest),
			"/usr/lib/firmware/agent.bin":            []byte("firmware " + digest),
			"/usr/lib/firmware/intel-ucode/06-01-01": []byte("microcode " + digest),
		},
	}
}

func (f *factory) agent(digest string) artefact.Extension {
	e := agentExtension(digest)
	if f.files != nil {
		e.Files = f.files
	}
	return e
}

// image is what the factory puts into an image of a schematic.
func (f *factory) image(what string, id, talos, arch, platform string) artefact.Image {
	e := schematics.Locked{File: "x", Schematic: f.schematics[id]}
	args := map[string]string{"installer": installerArgs, "iso": isoArgs, "disk": installerArgs}[what]
	img := artefact.Image{
		TalosVersion: talos, Arch: arch, Platform: platform, Cmdline: strings.Join(append([]string{args}, e.KernelArgs()...), " "),
		SchematicID: id, SchematicYAML: f.schematics[id], SchematicAuthor: "Image Factory (https://factory.example/" + f.salt + ")",
	}
	if strings.Contains(e.Schematic, agent) {
		img.Extensions = []artefact.Extension{f.agent(digest("one"))}
	}
	f.built(what, &img)
	return img
}

func (f *factory) bytes(of Artefact, req ISORequest) []byte {
	img := f.image(artefacts[of].noun, req.SchematicID, req.Talos, req.Arch, req.Platform)
	b, err := artefact.ISO(img)
	if of == DiskImage {
		b, err = artefact.DiskImage(img, artefact.DiskForm{})
	}
	if err != nil {
		panic(err)
	}
	return b
}

func (f *factory) Image(_ context.Context, of Artefact, req ISORequest, _ func(string)) (io.ReadCloser, int64, error) {
	if _, ok := f.schematics[req.SchematicID]; !ok {
		return nil, 0, errors.New("no such schematic")
	}
	f.downloads++
	b := f.bytes(of, req)
	return io.NopCloser(bytes.NewReader(f.sent(b))), f.announce(int64(len(b))), f.fail
}

func (f *factory) BuildInstaller(context.Context, ISORequest, func(string)) error { return f.fail }

// Extract makes the factory a registry of the content of its installers and the extension images.
func (f *factory) Extract(_ context.Context, ref, arch string) (io.ReadCloser, error) {
	f.pulls = append(f.pulls, ref)
	repository, d, _ := strings.Cut(ref, "@")
	if repository == "ghcr.io/"+agent {
		e := f.agent(d)
		files := map[string][]byte{"manifest.yaml": fmt.Appendf(nil,
			"version: v1alpha1\nmetadata: {name: %s, version: \"%s\", author: %s, description: %s, compatibility: {talos: {version: \">= v1.5.0\"}}}\n",
			e.Name, e.Version, e.Author, e.Description)}
		for name, data := range e.Files {
			files["rootfs"+name] = data
		}
		return tarOf(files), f.fail
	}
	uki, err := artefact.UKI(f.image("installer", repository[strings.LastIndex(repository, "/")+1:], "v1.13.9", arch, "nocloud"))
	if err != nil {
		return nil, err
	}
	loader, err := artefact.SystemdBoot(arch)
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{
		"bin/installer":                             []byte("installer"),
		"usr/install/" + arch + "/vmlinuz.efi":      uki,
		"usr/install/" + arch + "/systemd-boot.efi": loader,
	}
	f.packed(files)
	return tarOf(files), f.fail
}

func tarOf(files map[string][]byte) io.ReadCloser {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(files[name]))})
		if _, err2 := w.Write(files[name]); errors.Join(err, err2) != nil {
			panic(errors.Join(err, err2))
		}
	}
	if err := w.Close(); err != nil {
		panic(err)
	}
	return io.NopCloser(&b)
}

func (f *factory) Signatures(_ context.Context, ref string) ([]Signature, error) {
	_, d, _ := strings.Cut(ref, "@")
	return f.sign(d), f.fail
}

func (f *factory) InstallerRepository(req ISORequest) string {
	return "factory.example/" + req.Platform + "-installer/" + req.SchematicID
}

func (f *factory) ImageURL(of Artefact, req ISORequest) string {
	return "https://factory.example/" + artefacts[of].noun + "/" + req.SchematicID
}

// Digest makes the factory a registry of installers.
func (f *factory) Digest(_ context.Context, ref string) (string, bool, error) {
	for id := range f.schematics {
		repository := "factory.example/nocloud-installer/" + id
		if d := digest("installer " + id + f.salt); ref == repository+":v1.13.9" || ref == repository+"@"+d {
			return d, true, f.fail
		}
	}
	return "", false, f.fail
}

// bench is everything that a build and a publication need, made of fakes.
type bench struct {
	factory  *factory
	store    *store
	cache    *Cache
	saved    schematics.Lock
	saves    int
	saveErr  error
	ledger   *Ledger
	pub      Publisher
	verifier *verify.Verifier
	events   []string
	titles   []string // of the steps that were started
	notes    []string
}

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{factory: newFactory(), store: newStore(), cache: NewCache(t.TempDir() + "/iso")}
	b.again(lockOf(t))
	return b
}

// again is the state for a new process: only files and servers persist.
func (b *bench) again(lock schematics.Lock) {
	b.saved, b.saves = lock, 0
	b.ledger = NewLedger(lock, func(l schematics.Lock) error {
		if b.saveErr == nil {
			b.saved = l
			b.saves++
		}
		return b.saveErr
	})
	b.pub = Publisher{
		Store: b.store, Factory: b.factory, Delivery: Auto, Verify: VerifyWarn, Cache: b.cache, Ledger: b.ledger, Storages: []string{"cephfs", "local"},
		Hosts: map[string][]string{"default": {"pve1", "pve2"}},
		Note:  b.note,
	}
	b.factory.downloads, b.factory.registrations, b.factory.pulls, b.store.changes = 0, 0, nil, nil
	b.notes = nil
}

// iso is the published one.
func (b *bench) iso() schematics.BootFile { return b.saved.Schematics["default"].ISO }

func (b *bench) note(path, text string) { b.notes = append(b.notes, path+": "+text) }

func (b *bench) builder() Builder {
	b.verifier = verify.New(b.factory, b.cache.dir)
	return Builder{
		Factory: b.factory, Registry: b.factory, Puller: b.factory, Verifier: b.verifier,
		Signature: SignaturePolicy{Mode: SignatureOff}, Cache: b.cache, Ledger: b.ledger, Note: b.note,
	}
}

func (b *bench) run(t *testing.T, root step.Step) error {
	t.Helper()
	b.events, b.titles = nil, nil
	r := step.Runner{Emit: func(e step.Event) {
		if e.Status == step.Started {
			b.titles = append(b.titles, e.Title)
		}
		if e.Status != step.Started && e.Status != step.Note {
			b.events = append(b.events, strings.TrimSpace(fmt.Sprintf("%s %s %s", e.Path, e.Status, e.Text)))
		}
	}}
	return r.Run(t.Context(), root)
}

func sizeText(b *bench) string { return strconv.FormatInt(b.iso().SizeBytes, 10) }

// store is the storages of some hosts, by "host/storage"; shared ones have one map of ISOs.
type store struct {
	storages map[string]*storage
	changes  []string
	fail     error
	uses     []Use
	blind    error // the token does not see every VM
	held     bool  // nothing may be changed now
	clock    time.Time

	mayNot    string // why the token may not make hosts download, except mayOn
	mayOn     string
	urls      map[string][]byte                   // what hosts download from where; others are unreachable
	breakDown func(d Download, data []byte) error // before a download is stored; may be nil
	offline   []string
}

type storage struct {
	StorageInfo
	isos    map[string][]byte
	changed map[string]time.Time
}

func newStore() *store {
	iso := []string{"iso", "vztmpl"}
	one := func(shared bool, content ...string) *storage {
		return &storage{StorageInfo{true, shared, content, 1 << 20}, map[string][]byte{}, map[string]time.Time{}}
	}
	s := &store{storages: map[string]*storage{}, mayNot: "the token has nothing", urls: map[string][]byte{}}
	shared := one(true, iso...)
	for _, host := range []string{"pve1", "pve2"} {
		s.storages[host+"/cephfs"] = shared
		s.storages[host+"/local"] = one(false, iso...)
		s.storages[host+"/fast"] = one(false, "images")
	}
	return s
}

func (s *store) Storage(_ context.Context, host, name string) (StorageInfo, error) {
	st, ok := s.storages[host+"/"+name]
	if !ok {
		return StorageInfo{}, fmt.Errorf("%s on %s: %w", name, host, ErrNoStorage)
	}
	return st.StorageInfo, s.fail
}

func (s *store) ISO(_ context.Context, host, name, iso string) (StoredISO, bool, error) {
	st := s.storages[host+"/"+name]
	data, ok := st.isos[iso]
	return StoredISO{Name: iso, SizeBytes: int64(len(data)), Changed: st.changed[iso]}, ok, s.fail
}

// DiskImage: a name ends in .qcow2 or in .iso, so that one map holds both.
func (s *store) DiskImage(ctx context.Context, host, name, disk string) (StoredISO, bool, error) {
	return s.ISO(ctx, host, name, disk)
}

func (s *store) Upload(_ context.Context, u Upload) error {
	body, err := u.Open()
	if err != nil {
		return err
	}
	defer body.Close()
	data, err := io.ReadAll(body)
	if err != nil {
		return err
	}
	if u.Progress != nil {
		u.Progress(int64(len(data)))
	}
	if hash(data) != u.SHA256 || int64(len(data)) != u.SizeBytes {
		return errors.New("checksum mismatch")
	}
	s.put(u.Host+"/"+u.Storage, u.Name, data)
	s.changes = append(s.changes, "upload "+u.Host+"/"+u.Storage+" "+u.Name)
	return nil
}

// put writes a file, which changes its time.
func (s *store) put(at, name string, data []byte) {
	s.clock = s.clock.Add(time.Second)
	s.storages[at].isos[name], s.storages[at].changed[name] = data, s.clock
}

func (s *store) Uses(context.Context) ([]Use, error) { return s.uses, s.blind }

func (s *store) MayDownload(_ context.Context, host, _ string) (string, error) {
	if host == s.mayOn {
		return "", s.fail
	}
	return s.mayNot, s.fail
}

var errNoRoute = errors.New("500 can't connect")

func (s *store) URLSize(_ context.Context, _, url string) (int64, error) {
	data, ok := s.urls[url]
	if !ok {
		return 0, errNoRoute
	}
	return int64(len(data)), nil
}

// Download compares an existing file before it looks at the URL, as Proxmox does.
func (s *store) Download(_ context.Context, d Download) error {
	if s.held {
		return ErrNotSent
	}
	at := s.storages[d.Host+"/"+d.Storage]
	if have, ok := at.isos[d.Name]; ok {
		s.changes = append(s.changes, "compare "+d.Host+"/"+d.Storage+" "+d.Name)
		if hash(have) != d.SHA256 {
			return ErrOtherContent
		}
		return nil
	}
	data, ok := s.urls[d.URL]
	if !ok {
		return errNoRoute
	}
	s.changes = append(s.changes, "download "+d.Host+"/"+d.Storage+" "+d.Name)
	if s.breakDown != nil {
		if err := s.breakDown(d, data); err != nil {
			return err
		}
	}
	if hash(data) != d.SHA256 {
		return ErrOtherContent
	}
	s.put(d.Host+"/"+d.Storage, d.Name, data)
	return nil
}

func (s *store) Nodes(context.Context) (online, offline []string, err error) {
	for name := range s.storages {
		host, _, _ := strings.Cut(name, "/")
		if !slices.Contains(online, host) && !slices.Contains(s.offline, host) {
			online = append(online, host)
		}
	}
	slices.Sort(online)
	return online, s.offline, s.fail
}

func (s *store) ISOs(_ context.Context, host, name string) ([]StoredISO, error) {
	return s.list(host, name, ".iso")
}

func (s *store) list(host, name, end string) ([]StoredISO, error) {
	at := s.storages[host+"/"+name]
	var isos []StoredISO
	for _, iso := range slices.Sorted(maps.Keys(at.isos)) {
		if strings.HasSuffix(iso, ".iso") && end != ".iso" || strings.HasSuffix(iso, ".qcow2") && end != ".qcow2" {
			continue
		}
		isos = append(isos, StoredISO{Host: host, Storage: name, Name: iso, SizeBytes: int64(len(at.isos[iso])), Changed: at.changed[iso]})
	}
	return isos, s.fail
}

func (s *store) DiskImages(_ context.Context, host, name string) ([]StoredISO, error) {
	return s.list(host, name, ".qcow2")
}

func (s *store) DeleteISO(_ context.Context, iso StoredISO) error {
	delete(s.storages[iso.Host+"/"+iso.Storage].isos, iso.Name)
	s.changes = append(s.changes, "delete "+iso.String())
	return s.fail
}

const (
	largeBytes   = 300 << 20
	maxPeakMiB   = 128
	largeVar     = "RECAST_LARGE_IMAGES" // directory into which the process writes them
	largeTar     = "installer.tar"
	largeISO     = "boot.iso"
	largeDisk    = "disk.qcow2"
	largeExtFile = "extension.tar"
)

// BenchmarkVerify verifies an installer and an ISO of 300 MiB against an extension of that size, and fails if that
// takes too much memory. Another process makes them, to keep its garbage off the verifier's heap.
func BenchmarkVerify(b *testing.B) { benchmarkVerify(b, verifyLargeISO) }

// BenchmarkVerifyDisk is BenchmarkVerify with a disk image instead of the ISO.
func BenchmarkVerifyDisk(b *testing.B) { benchmarkVerify(b, verifyLargeDisk) }

// verifyLarge verifies the ISO or the disk image in a directory.
type verifyLarge func(b *testing.B, v *verify.Verifier, dir string, boot verify.Boot)

func benchmarkVerify(b *testing.B, large verifyLarge) {
	b.Helper()
	if dir := os.Getenv(largeVar); dir != "" {
		makeLarge(b, dir)
		return
	}
	dir := b.TempDir()
	maker := exec.Command(os.Args[0], "-test.run=^$", "-test.bench=^BenchmarkVerify$", "-test.benchtime=1x")
	maker.Env = append(os.Environ(), largeVar+"="+dir)
	if out, err := maker.CombinedOutput(); err != nil {
		b.Fatalf("make the images: %v\n%s", err, out)
	}
	lock, id := largeLock(b)
	b.SetBytes(2 * largeBytes)
	for b.Loop() {
		v := verify.New(largeImages(dir), b.TempDir())
		peak := heap.Peak(b.Context(), func() { large(b, v, dir, verifyLargeInstaller(b, v, lock, id, dir)) })
		must.Do(b, v.Close())
		b.ReportMetric(float64(peak)/(1<<20), "peak-MiB")
		must.Be(b, peak <= maxPeakMiB<<20, "the heap has grown to %d MiB, %d are allowed", peak>>20, maxPeakMiB)
	}
}

func verifyLargeInstaller(b *testing.B, v *verify.Verifier, lock schematics.Lock, e schematics.Locked, dir string) verify.Boot {
	b.Helper()
	installer := must.Get(os.Open(filepath.Join(dir, largeTar)))(b)
	defer installer.Close()
	return must.Get(v.Installer(b.Context(), lock, e, installer, func(string) {}))(b)
}

func verifyLargeISO(b *testing.B, v *verify.Verifier, dir string, boot verify.Boot) {
	b.Helper()
	lock, e := largeLock(b)
	iso, size := openLarge(b, dir, largeISO)
	must.Do(b, v.ISO(b.Context(), lock, e, iso, size, boot, func(string) {}))
}

func verifyLargeDisk(b *testing.B, v *verify.Verifier, dir string, boot verify.Boot) {
	b.Helper()
	lock, e := largeLock(b)
	disk, size := openLarge(b, dir, largeDisk)
	must.Get(v.Disk(b.Context(), lock, e, disk, size, boot, func(string) {}))(b)
}

func openLarge(b *testing.B, dir, name string) (*os.File, int64) {
	b.Helper()
	f := must.Get(os.Open(filepath.Join(dir, name)))(b)
	b.Cleanup(func() { _ = f.Close() }) // it was only read
	info := must.Get(f.Stat())(b)
	return f, info.Size()
}

func largeLock(b *testing.B) (schematics.Lock, schematics.Locked) {
	b.Helper()
	lock := lockOf(b)
	return lock, lock.Schematics["default"]
}

// makeLarge writes the images into a directory.
func makeLarge(b *testing.B, dir string) {
	b.Helper()
	_, e := largeLock(b)
	random := rand.NewChaCha8([32]byte{})
	files := map[string][]byte{}
	for i := range 3 {
		content := make([]byte, largeBytes/3)
		_, _ = random.Read(content) // it never fails
		files[fmt.Sprintf("/usr/local/lib/large-%d", i)] = content
	}
	f := newFactory()
	f.schematics[e.SchematicID] = e.Schematic
	f.files = files
	save := func(name string, from io.Reader) {
		out := must.Get(os.Create(filepath.Join(dir, name)))(b)
		must.Get(io.Copy(out, from))(b)
		must.Do(b, out.Close())
	}
	for name, ref := range map[string]string{
		largeTar: "factory.example/nocloud-installer/" + e.SchematicID + "@", largeExtFile: "ghcr.io/" + agent + "@" + digest("one"),
	} {
		content := must.Get(f.Extract(b.Context(), ref, "amd64"))(b)
		save(name, content)
	}
	iso := must.Get(artefact.ISO(f.image("iso", e.SchematicID, "v1.13.9", "amd64", "nocloud")))(b)
	save(largeISO, bytes.NewReader(iso))
	disk := must.Get(artefact.DiskImage(f.image("disk", e.SchematicID, "v1.13.9", "amd64", "nocloud"), artefact.DiskForm{}))(b)
	save(largeDisk, bytes.NewReader(disk))
}

// largeImages is the registry of the one extension.
type largeImages string

func (dir largeImages) Extract(context.Context, string, string) (io.ReadCloser, error) {
	return os.Open(filepath.Join(string(dir), largeExtFile))
}

func (dir largeImages) Signatures(context.Context, string) ([]Signature, error) { return nil, nil }
