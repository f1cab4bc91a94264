// Package images makes the images that a lock describes: a [Builder] builds, fetches and checks them, and a
// [Publisher] brings the boot ISOs and disk images to Proxmox storage. A step is skipped if its result exists.
package images

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/recast-sh/recast/images/verify"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/words"
	"github.com/recast-sh/recast/schematics"
)

// Builder builds the images that the lock describes. It trusts received data only after it has compared the data with
// the lock.
type Builder struct {
	Factory   Factory
	Registry  Registry
	Puller    Puller
	Verifier  *verify.Verifier
	Signature SignaturePolicy
	Cache     *Cache
	Ledger    *Ledger
	ByImager  ImagerBuilder // for what the factory cannot build
	// Mirror is the repository from which nodes pull installers; "": the factory's. The factory may no longer have an
	// installer that the mirror has.
	Mirror string
	// Disk reports whether a schematic's disk image is wanted, too; nil: no disk image is wanted.
	Disk func(schematic string) bool
	// Published says where the ISO or the disk image of a schematic is published; a published file is not fetched.
	// reason is "" if the file is missing somewhere. May be nil: always fetch.
	Published func(ctx context.Context, of Artefact, schematic string) (reason string, err error)
	// Note receives the progress of the step at a path below Step: "build/default/fetch-iso". May be nil.
	Note func(path, text string)
}

// Step returns a tree of steps that end with an installer and a boot ISO for every schematic of the lock.
func (b Builder) Step() step.Step {
	return step.Step{
		ID: "build", Code: fault.BuildFailed, Title: "build images",
		Steps: func(context.Context) ([]step.Step, error) {
			var steps []step.Step
			for _, name := range b.Ledger.Lock().Names() {
				steps = append(steps, b.schematic(name))
			}
			return steps, nil
		},
	}
}

func (b Builder) schematic(name string) step.Step {
	return step.Step{
		ID: name, Title: "build schematic " + name,
		Skip: func(ctx context.Context) (string, error) { return b.haveAll(ctx, name) },
		Steps: func(context.Context) ([]step.Step, error) {
			if b.ByImager.builds(name) {
				return b.imagerSteps(name), nil
			}
			return b.factorySteps(name), nil
		},
	}
}

// haveAll says where the installer and the wanted files of a schematic are; "" if one of them is missing.
func (b Builder) haveAll(ctx context.Context, name string) (string, error) {
	installer, err := b.haveInstaller(ctx, name)
	if err != nil || installer == "" {
		return "", err
	}
	have := []string{installer}
	for _, a := range b.wanted(name) {
		file, err := b.haveFile(ctx, a, name)
		if err != nil || file == "" {
			return "", err
		}
		have = append(have, file)
	}
	return strings.Join(have, "; "), nil
}

// wanted lists the kinds of files that are wanted of a schematic.
func (b Builder) wanted(name string) []Artefact {
	if b.Disk != nil && b.Disk(name) {
		return []Artefact{BootISO, DiskImage}
	}
	return []Artefact{BootISO}
}

// factorySteps returns the steps that record an installer, an ISO and, if wanted, a disk image in the lock. Each of
// them is recorded after its content was verified.
func (b Builder) factorySteps(name string) []step.Step {
	m := new(sharedState)
	steps := []step.Step{
		{
			ID: "check-factory", Title: "compare the factory's extensions with the lock",
			Do: func(ctx context.Context) error { return b.checkFactory(ctx, name) },
		},
		{
			ID: "register-schematic", Title: "register the schematic",
			Skip: func(ctx context.Context) (string, error) { return b.registered(ctx, name) },
			Do:   func(ctx context.Context) error { return b.register(ctx, name) },
		},
		{
			ID: "resolve-installer", Title: "have the installer built",
			Skip: func(ctx context.Context) (string, error) {
				if m.installer != "" {
					return "the installer is " + m.installer, nil
				}
				return b.haveInstaller(ctx, name)
			},
			Do: func(ctx context.Context) (err error) {
				m.installer, err = b.resolveInstaller(ctx, name)
				return err
			},
		},
		{
			ID: "verify-installer", Code: fault.ImageDiffers, Title: "compare what the installer holds with the lock",
			Skip: func(ctx context.Context) (string, error) { return b.haveInstaller(ctx, name) },
			Do:   func(ctx context.Context) error { return b.verifyInstaller(ctx, name, m) },
		},
	}
	for _, a := range b.wanted(name) {
		steps = append(steps, b.fetchStep(a, name, m))
	}
	return steps
}

// fetchStep returns the step that ends with the file recorded in the lock, and in the cache or published.
func (b Builder) fetchStep(a Artefact, name string, m *sharedState) step.Step {
	return step.Step{
		ID: "fetch-" + artefacts[a].noun, Code: fault.ImageDiffers, Title: fmt.Sprintf("fetch the %s and compare what it holds with the lock", a),
		Skip: func(ctx context.Context) (string, error) { return b.haveFile(ctx, a, name) },
		Do:   func(ctx context.Context) error { return b.fetch(ctx, a, name, m) },
	}
}

// sharedState is shared by the steps of a schematic.
type sharedState struct {
	installer string      // repository@digest, not verified yet
	boot      verify.Boot // what the verified installer boots
}

// checkFactory refuses to build while the factory would build something other than the lock says.
func (b Builder) checkFactory(ctx context.Context, name string) error {
	lock, _ := b.Ledger.entry(name)
	return lock.CheckFactory(ctx, name, b.Factory)
}

func (b Builder) registered(ctx context.Context, name string) (string, error) {
	_, e := b.Ledger.entry(name)
	known, err := b.Factory.Knows(ctx, e.SchematicID)
	if err != nil || !known {
		return "", err
	}
	return "the factory knows schematic " + schematics.Short(e.SchematicID), nil
}

func (b Builder) register(ctx context.Context, name string) error {
	_, e := b.Ledger.entry(name)
	id, text, err := b.Factory.Register(ctx, e.Schematic)
	if err != nil {
		return fmt.Errorf("register schematic %s: %w", name, err)
	}
	return e.CheckRegistered(name, id, text)
}

// haveInstaller names the verified installer that the lock records; "" if it cannot be pulled or its signature does
// not satisfy the policy.
func (b Builder) haveInstaller(ctx context.Context, name string) (string, error) {
	_, e := b.Ledger.entry(name)
	if !b.ByImager.builds(name) { // the imager's installers have no signature
		if settled, err := b.Signature.settled(e); err != nil || !settled {
			return "", err
		}
	}
	return b.pullable(ctx, name)
}

// pullable names the installer that the lock records; "" if neither the mirror nor the factory has it.
func (b Builder) pullable(ctx context.Context, name string) (string, error) {
	lock, e := b.Ledger.entry(name)
	repository, digest, _ := strings.Cut(e.Installer, "@")
	if digest == "" || repository != b.Mirror && repository != b.Factory.InstallerRepository(RequestOf(lock, e)) {
		return "", nil
	}
	got, found, err := b.Registry.Digest(ctx, e.Installer)
	if err != nil {
		return "", fmt.Errorf("look for the installer: %w", err)
	}
	if !found || got != digest {
		return "", nil
	}
	return "installer " + shortDigest(digest) + " is there", nil
}

// resolveInstaller returns the installer to verify: the lock's if it can be pulled, otherwise what the factory builds.
func (b Builder) resolveInstaller(ctx context.Context, name string) (string, error) {
	lock, e := b.Ledger.entry(name)
	if there, err := b.pullable(ctx, name); err != nil || there != "" {
		return e.Installer, err
	}
	repository := b.Factory.InstallerRepository(RequestOf(lock, e))
	tag := repository + ":" + lock.Talos
	if err := b.Factory.BuildInstaller(ctx, RequestOf(lock, e), b.noteFor(name, "resolve-installer")); err != nil {
		return "", fmt.Errorf("have the installer built: %w", err)
	}
	digest, found, err := b.Registry.Digest(ctx, tag)
	if err != nil {
		return "", fmt.Errorf("resolve the installer: %w", err)
	}
	if !found {
		return "", fmt.Errorf("resolve the installer: the factory has no %s", tag)
	}
	if _, old, _ := strings.Cut(e.Installer, "@"); old != "" && old != digest {
		return "", fault.WithHint(
			fault.ImageDiffers.Refusedf("%s is %s now, but the lock has %s, which is gone", tag, digest, old),
			"the factory has rebuilt it, or someone changed it. To trust the new one, remove recast.lock and run `recast lock`")
	}
	return repository + "@" + digest, nil
}

// verifyInstaller verifies the installer and records it in the lock.
func (b Builder) verifyInstaller(ctx context.Context, name string, m *sharedState) error {
	lock, e := b.Ledger.entry(name)
	if m.installer == "" { // the step resolve-installer was skipped
		var err error
		if m.installer, err = b.resolveInstaller(ctx, name); err != nil {
			return err
		}
	}
	note := b.noteFor(name, "verify-installer")
	signer, unsigned := b.signer(ctx, name, m.installer, note)
	boot, other := b.installerBoot(ctx, lock, e, m.installer, note)
	if err := errors.Join(unsigned, other); err != nil {
		return err
	}
	m.boot = boot
	if _, digest, _ := strings.Cut(m.installer, "@"); signer == "" && strings.HasSuffix(e.Installer, "@"+digest) {
		signer = e.Signer // who signed the same bytes, whatever the policy is now
	}
	return b.Ledger.record(e.BuildID, func(e *schematics.Locked) { e.Installer, e.Signer = m.installer, signer })
}

// installerBoot verifies an installer's content and returns what it boots.
func (b Builder) installerBoot(ctx context.Context, lock schematics.Lock, e schematics.Locked, installer string, note func(string)) (verify.Boot, error) {
	files, err := b.Puller.Extract(ctx, installer, lock.Arch)
	if err != nil {
		return verify.Boot{}, fmt.Errorf("pull the installer: %w", err)
	}
	defer files.Close()
	read := &counted{Reader: files, tell: progress(-1, func(text string) { note("read " + text + " of the installer") })}
	return b.Verifier.Installer(ctx, lock, e, read, note)
}

// haveFile says where the file that the lock records is: in the cache or published; "" if it is in neither place.
func (b Builder) haveFile(ctx context.Context, a Artefact, name string) (string, error) {
	lock, e := b.Ledger.entry(name)
	file := a.File(lock, e)
	if file.SHA256 == "" {
		return "", nil
	}
	cached, found, err := b.Cache.look(file.Name)
	if err != nil {
		return "", err
	}
	if found && cached == file {
		return file.Name + " is in the cache", nil
	}
	if b.Published == nil {
		return "", nil
	}
	return b.Published(ctx, a, name)
}

// fetch downloads a file from the factory, verifies it and records it in the lock.
func (b Builder) fetch(ctx context.Context, a Artefact, name string, m *sharedState) error {
	lock, e := b.Ledger.entry(name)
	note := b.noteFor(name, "fetch-"+artefacts[a].noun)
	body, size, err := b.Factory.Image(ctx, a, RequestOf(lock, e), note)
	if err != nil {
		return fmt.Errorf("fetch the %s: %w", a, err)
	}
	defer body.Close()
	locked := a.File(lock, e)
	got, err := b.keep(ctx, a, name, m, &counted{Reader: body, tell: progress(size, note)}, size, schematics.BootFile{Name: locked.Name}, note)
	if err != nil || got.BootFile == locked {
		return err
	}
	if locked.SHA256 != "" {
		note(fmt.Sprintf("its content is as locked: its SHA-256 %s replaces %s in recast.lock", got.SHA256, locked.SHA256))
	}
	return b.record(a, e, got)
}

// keep stores a file in the cache. It verifies the file unless the lock records the same file, whose bytes were
// verified before.
func (b Builder) keep(
	ctx context.Context, a Artefact, name string, m *sharedState, body io.Reader, announced int64, want schematics.BootFile, note func(string),
) (schematics.Disk, error) {
	lock, e := b.Ledger.entry(name)
	diskBytes := e.Disk.DiskBytes
	got, err := b.Cache.store(body, announced, want, func(f *os.File, got schematics.BootFile) (err error) {
		if got != a.File(lock, e) {
			diskBytes, err = b.verify(ctx, a, name, m, f, got, note)
		}
		return err
	})
	return schematics.Disk{BootFile: got, DiskBytes: diskBytes}, err
}

// record records a verified file in the lock.
func (b Builder) record(a Artefact, e schematics.Locked, got schematics.Disk) error {
	return b.Ledger.record(e.BuildID, func(e *schematics.Locked) {
		e.Uploads = slices.DeleteFunc(slices.Clone(e.Uploads), func(u schematics.Upload) bool { return StoredISO{Name: u.Name}.Of() == a }) // of other bytes
		if a == DiskImage {
			e.Disk = got
			return
		}
		e.ISO = got.BootFile
	})
}

// verify compares a file's content with the lock. If the file's checksum is not the locked one, a factory has rebuilt
// the file: the bytes of a rebuild always differ. diskBytes is the size of the disk that a disk image describes.
func (b Builder) verify(ctx context.Context, a Artefact, name string, m *sharedState, f *os.File, got schematics.BootFile, note func(string)) (diskBytes int64, err error) {
	lock, e := b.Ledger.entry(name)
	if m.boot == (verify.Boot{}) { // the installer was verified in an earlier run
		if m.boot, err = b.installerBoot(ctx, lock, e, e.Installer, note); err != nil {
			return 0, err
		}
	}
	if a == DiskImage {
		diskBytes, err = b.Verifier.Disk(ctx, lock, e, f, got.SizeBytes, m.boot, note)
	} else {
		err = b.Verifier.ISO(ctx, lock, e, f, got.SizeBytes, m.boot, note)
	}
	locked := a.File(lock, e).SHA256
	if _, differs := errors.AsType[*verify.Mismatch](err); differs && locked != "" {
		return 0, fmt.Errorf("the factory's %s differs from the lock's (SHA-256 %s, locked is %s), and so does its content: %w", a, got.SHA256, locked, err)
	}
	return diskBytes, err
}

// noteFor returns a function that reports the progress of a step of a schematic.
func (b Builder) noteFor(schematic, step string) func(text string) {
	return func(text string) {
		if b.Note != nil {
			b.Note("build/"+schematic+"/"+step, text)
		}
	}
}

// RequestOf returns the request for the images of a locked schematic, as the factory takes it.
func RequestOf(lock schematics.Lock, e schematics.Locked) ISORequest {
	return ISORequest{
		SchematicID: e.SchematicID, Talos: lock.Talos, Platform: lock.Platform, Arch: lock.Arch, SecureBoot: lock.SecureBoot,
	}
}

func shortDigest(digest string) string { return digest[:min(len(digest), len("sha256:")+12)] }

// Ledger is a lock that is being built. Results, such as an installer's digest or an
// ISO's checksum, are recorded in it and saved at once.
type Ledger struct {
	save func(schematics.Lock) error

	mu   sync.Mutex
	lock schematics.Lock
}

// NewLedger returns a Ledger for a lock. save writes the lock to its file.
func NewLedger(lock schematics.Lock, save func(schematics.Lock) error) *Ledger {
	return &Ledger{save: save, lock: lock.Clone()}
}

// Lock returns the lock with everything recorded so far.
func (l *Ledger) Lock() schematics.Lock {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lock.Clone()
}

// entry returns the lock and its schematic with the given name, which is one of the lock's.
func (l *Ledger) entry(name string) (schematics.Lock, schematics.Locked) {
	lock := l.Lock()
	return lock, lock.Schematics[name]
}

// record changes every schematic with that build ID and saves the lock. If saving fails, nothing changes.
func (l *Ledger) record(buildID string, change func(*schematics.Locked)) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	lock := l.lock.Clone()
	for name, e := range lock.Schematics {
		if e.BuildID == buildID {
			change(&e)
			lock.Schematics[name] = e
		}
	}
	if err := l.save(lock.Clone()); err != nil {
		return fmt.Errorf("record what was built: %w", err)
	}
	l.lock = lock
	return nil
}

const mib = 1 << 20

// rateAfter is how long a transfer must take before its speed is reported.
const rateAfter = 5 * time.Second

// progress returns a function that turns a byte count into an occasional note: every tenth of the total, or every 64
// MiB if the total is unknown. A count that decreases belongs to another attempt.
func progress(total int64, note func(string)) func(done int64) {
	every := int64(64 * mib)
	if total > 0 {
		every = max(total/10, 1)
	}
	next, last, begun := every, int64(0), time.Now()
	return func(done int64) {
		if done < last {
			next, begun = every, time.Now()
			note("beginning again")
		}
		last = done
		if done < next {
			return
		}
		next = (done/every + 1) * every
		text := words.Size(done)
		if total > 0 {
			text += " of " + words.Size(total)
		}
		if took := time.Since(begun); took >= rateAfter {
			text += ", " + words.Size(int64(float64(done)/took.Seconds())) + "/s"
		}
		note(text)
	}
}

// counted reports how many bytes were read so far.
type counted struct {
	io.Reader
	done int64
	tell func(done int64)
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.done += int64(n)
	c.tell(c.done)
	return n, err
}

// ReadProgress parses the note of a transfer: done and total are bytes, text is the whole note without a comma at its
// end. ok is false for any other note.
func ReadProgress(note string) (done, total int64, text string, ok bool) {
	amount, _, _ := strings.Cut(note, ", ")
	so, of, found := strings.Cut(amount, " of ")
	if !found {
		return 0, 0, "", false
	}
	done, errDone := readSize(so)
	total, errTotal := readSize(of)
	if errDone != nil || errTotal != nil || total == 0 {
		return 0, 0, "", false
	}
	return done, total, strings.TrimSuffix(note, ", "), true
}

// readSize parses a size that words.Size has written.
func readSize(text string) (int64, error) {
	number, unit, _ := strings.Cut(text, " ")
	n, err := strconv.ParseInt(number, 10, 64)
	switch {
	case err != nil:
		return 0, err
	case unit == "KiB":
		return n << 10, nil
	case unit == "MiB":
		return n << 20, nil
	}
	return 0, fmt.Errorf("%q is not a size", text)
}

// ImagerBuilder builds, with Talos' imager, what no Image Factory can build: schematics with extensions that only
// their own registry has.
type ImagerBuilder struct {
	// Builds reports whether the imager builds a schematic; nil: it builds none.
	Builds   func(schematic string) bool
	Imager   Imager
	Archives Archives
	Copier   Copier
	Base     string // repository of the base installer: "ghcr.io/siderolabs/installer-base"
	Scratch  string // directory for temporary files
}

// builds reports whether the imager builds a schematic's images.
func (i ImagerBuilder) builds(schematic string) bool { return i.Builds != nil && i.Builds(schematic) }

// imagerSteps returns the steps that end with an installer in the mirror, and an ISO and, if wanted, a disk image in
// the lock.
//
// The imager never makes the same bytes twice (times of files, see docs/notes/images.md). So the mirror keeps all
// images for everyone who has the lock or resolves the same build: installers under their tags, boot ISOs and disk
// images beside the installers.
func (b Builder) imagerSteps(name string) []step.Step {
	title := "have the imager build installer and boot ISO"
	if len(b.wanted(name)) > 1 {
		title = "have the imager build installer, boot ISO and disk image"
	}
	return []step.Step{{
		ID: "run-imager", Title: title,
		Skip: func(ctx context.Context) (string, error) { return b.haveAll(ctx, name) },
		Do: func(ctx context.Context) (err error) {
			if err := b.imagerCan(name); err != nil {
				return err
			}
			w := &workspace{Builder: b, name: name}
			defer func() { err = errors.Join(err, w.remove()) }()
			err = w.installer(ctx)
			for _, a := range b.wanted(name) {
				if err == nil {
					err = w.file(ctx, a)
				}
			}
			return err
		},
	}}
}

// imagerCan returns why the imager cannot build a schematic; nil if it can.
func (b Builder) imagerCan(name string) error {
	lock, e := b.Ledger.entry(name)
	switch {
	case b.Mirror == "":
		return fault.WithHint(fault.BuildFailed.Configf("schematic %q is built by the imager, but there is no repository to pull its installer from", name),
			"name a repository of yours in images.mirror, such as ghcr.io/acme/talos")
	case lock.SecureBoot:
		return fault.WithHint(fault.BuildFailed.Refusedf("schematic %q is built by the imager, which has no key to sign images for Secure Boot with", name),
			"let the Image Factory build it: only official extensions, images.builder: factory")
	case e.EmbedsConfig():
		return fault.WithHint(fault.BuildFailed.Refusedf("schematic %q embeds a machine configuration, which the imager would print with its secrets", name),
			"remove embeddedMachineConfiguration from %s", e.File)
	}
	return nil
}

// installer ensures that the mirror has the installer, and records it in the lock.
func (w *workspace) installer(ctx context.Context) error {
	have, err := w.pullable(ctx, w.name)
	if err != nil || have != "" {
		return err
	}
	lock, e := w.Ledger.entry(w.name)
	tag := w.Mirror + ":" + TagOf(lock, e)
	if e.Installer != "" {
		return fault.WithHint(fault.ImageDiffers.Refusedf("the lock's installer %s is gone, and the imager never makes the same bytes again", e.Installer),
			"put it back into the registry. To have a new one built, remove recast.lock and run `recast lock`: every node is stale then")
	}
	digest, found, err := w.tagged(ctx, tag)
	switch {
	case err != nil:
		return err
	case found:
		w.say("%s already exists: it is verified instead of being built again", tag)
	default:
		if digest, err = w.makeInstaller(ctx, lock, e); err != nil {
			return err
		}
	}
	ref := w.Mirror + "@" + digest
	if found {
		if err := w.builtUponBase(ctx, lock, ref); err != nil {
			return w.explainMismatch(err, tag, found)
		}
	}
	if w.built.boot, err = w.installerBoot(ctx, lock, e, ref, w.note); err != nil {
		return w.explainMismatch(fmt.Errorf("verify %s: %w", ref, err), tag, found)
	}
	// The tag comes last: it marks the pushed image as complete and verified.
	if !found {
		if err := w.ByImager.Copier.Tag(ctx, ref, tag); err != nil {
			return fmt.Errorf("tag the installer: %w", err)
		}
	}
	return w.Ledger.record(e.BuildID, func(e *schematics.Locked) { e.Installer, e.Signer = ref, "" })
}

// explainMismatch adds a hint to the error of an image that differs from the lock.
func (w *workspace) explainMismatch(err error, tag string, found bool) error {
	if found {
		return fault.WithHint(err, "someone has pushed something else as %s: see whose it is; once nobody uses that tag, delete it from the registry", tag)
	}
	return fault.WithHint(err, "the imager has built something else than requested: check which version images.imager names")
}

// builtUponBase checks the installer's own programs, which no other check covers.
func (w *workspace) builtUponBase(ctx context.Context, lock schematics.Lock, ref string) error {
	base, err := pinned(lock.Imager.Base, w.ByImager.Base)
	if err != nil {
		return fmt.Errorf("resolve the base installer: %w", err)
	}
	return w.ByImager.Archives.BuiltUpon(ctx, ref, base, lock.Arch)
}

// tagged looks for an installer that was built and pushed before, for instance by a
// run that was killed before it wrote the lock.
func (w *workspace) tagged(ctx context.Context, tag string) (digest string, found bool, err error) {
	digest, found, err = w.ByImager.Copier.Head(ctx, tag)
	if errors.Is(err, ErrDenied) {
		return "", false, nil // either the first push creates the repository, or the push will be denied, too
	}
	if err != nil {
		return "", false, fmt.Errorf("look for an installer in the mirror: %w", err)
	}
	return digest, found, nil
}

func (w *workspace) makeInstaller(ctx context.Context, lock schematics.Lock, e schematics.Locked) (digest string, err error) {
	job, err := w.job(ctx, lock, e)
	if err != nil {
		return "", err
	}
	job.Output = OutputInstaller
	if job.BaseInstaller, err = w.baseInstaller(ctx, lock); err != nil {
		return "", err
	}
	file, err := w.ByImager.Imager.Build(ctx, w.dir, job, w.note)
	if err != nil {
		return "", fmt.Errorf("build the installer: %w", err)
	}
	w.say("pushing the installer to %s", w.Mirror)
	digest, err = w.ByImager.Archives.PushArchive(ctx, ArchivePush{
		File: filepath.Join(w.dir, file), Repository: w.Mirror, Arch: lock.Arch, Base: job.BaseInstaller.Ref, Progress: progress(-1, w.note),
	})
	if err != nil {
		return "", fmt.Errorf("push the installer: %w", err)
	}
	return digest, nil
}

// file ensures that the boot ISO or the disk image is in the cache and beside the installer, and records it in the
// lock.
func (w *workspace) file(ctx context.Context, a Artefact) error {
	have, err := w.haveFile(ctx, a, w.name)
	if err != nil || have != "" {
		return err
	}
	lock, e := w.Ledger.entry(w.name)
	want := a.File(lock, e)
	kept, found, err := w.kept(ctx, a, e, want)
	if err != nil {
		return err
	}
	if !found && want.SHA256 != "" {
		return fault.WithHint(fault.ImageDiffers.Refusedf("%s is neither in the cache nor beside the installer in %s, and the imager never makes the same bytes again", want.Name, w.Mirror),
			"copy it from a storage that has it to %s. To have a new one built, remove recast.lock and run `recast lock`", w.Cache.path(want.Name))
	}
	var got schematics.Disk
	if found {
		got, err = w.fetchKept(ctx, a, e, kept)
	} else {
		got, err = w.makeFile(ctx, a, lock, e)
	}
	if err != nil || got.BootFile == want {
		return err
	}
	return w.record(a, e, got)
}

// mirrored reports whether the installer is in the mirror. An installer that the factory built, before the imager
// took over, is not.
func (w *workspace) mirrored(e schematics.Locked) bool {
	return strings.HasPrefix(e.Installer, w.Mirror+"@")
}

// kept looks beside the installer for the build's file: the locked file, or any if none is locked yet.
func (w *workspace) kept(ctx context.Context, a Artefact, e schematics.Locked, want schematics.BootFile) (schematics.BootFile, bool, error) {
	if !w.mirrored(e) {
		return schematics.BootFile{}, false, nil
	}
	list, err := w.ByImager.Archives.Attached(ctx, e.Installer)
	if err != nil {
		return schematics.BootFile{}, false, fmt.Errorf("look for a %s beside the installer: %w", a, err)
	}
	list = slices.DeleteFunc(list, func(f schematics.BootFile) bool {
		return f.Name != want.Name || want.SHA256 != "" && f != want
	})
	if len(list) == 0 {
		return schematics.BootFile{}, false, nil
	}
	return slices.MinFunc(list, func(a, b schematics.BootFile) int { return strings.Compare(a.SHA256, b.SHA256) }), true, nil
}

// fetchKept fetches a file from the mirror.
func (w *workspace) fetchKept(ctx context.Context, a Artefact, e schematics.Locked, kept schematics.BootFile) (schematics.Disk, error) {
	w.say("fetching %s from %s", kept.Name, w.Mirror)
	body, err := w.ByImager.Archives.AttachedFile(ctx, e.Installer, kept)
	if err != nil {
		return schematics.Disk{}, fmt.Errorf("fetch the %s: %w", a, err)
	}
	defer body.Close()
	got, err := w.keep(ctx, a, w.name, &w.built, &counted{Reader: body, tell: progress(kept.SizeBytes, w.note)}, kept.SizeBytes, kept, w.note)
	if err != nil {
		return got, fault.WithHint(err, "it was kept beside %s: if it is not its %s, delete it there (an OCI manifest with the installer as its subject)", e.Installer, a)
	}
	return got, nil
}

// makeFile builds a file. It pushes the file to the mirror before the file is recorded: only then is a lock that
// names the file of use to others.
func (w *workspace) makeFile(ctx context.Context, a Artefact, lock schematics.Lock, e schematics.Locked) (got schematics.Disk, err error) {
	job, err := w.job(ctx, lock, e)
	if err != nil {
		return got, err
	}
	job.Output = artefacts[a].output
	file, err := w.ByImager.Imager.Build(ctx, w.dir, job, w.note)
	if err != nil {
		return got, fmt.Errorf("build the %s: %w", a, err)
	}
	f, err := os.Open(filepath.Join(w.dir, file))
	if err != nil {
		return got, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return got, err
	}
	got, err = w.keep(ctx, a, w.name, &w.built, f, info.Size(), schematics.BootFile{Name: a.File(lock, e).Name}, w.note)
	if _, other := errors.AsType[*verify.Mismatch](err); other {
		err = w.explainMismatch(err, "", false)
	}
	if err != nil || !w.mirrored(e) {
		return got, err
	}
	w.say("pushing %s to %s", got.Name, w.Mirror)
	if err := w.ByImager.Archives.Attach(ctx, e.Installer, w.Cache.path(got.Name), a, got.BootFile, progress(got.SizeBytes, w.note)); err != nil {
		return got, fmt.Errorf("push the %s: %w", a, err)
	}
	return got, nil
}

// workspace is where the imager builds one schematic.
type workspace struct {
	Builder
	name  string
	top   string // private; "" until something is built
	dir   string // in top: the directory that the imager sees
	made  ImagerJob
	built sharedState // of the verified installer
}

func (w *workspace) note(text string) { w.noteFor(w.name, "run-imager")(text) }

func (w *workspace) say(format string, args ...any) { w.note(fmt.Sprintf(format, args...)) }

// job returns the inputs of all outputs, which it fetches on its first call. The imager itself gets no credentials
// and needs no network.
func (w *workspace) job(ctx context.Context, lock schematics.Lock, e schematics.Locked) (ImagerJob, error) {
	if w.top != "" {
		return w.made, nil
	}
	if _, err := w.ByImager.Imager.Ready(ctx); err != nil {
		return ImagerJob{}, err
	}
	if err := w.open(); err != nil {
		return ImagerJob{}, fmt.Errorf("make a directory to build in: %w", err)
	}
	job := ImagerJob{
		Talos: lock.Talos, Arch: lock.Arch, Platform: lock.Platform, SchematicID: e.SchematicID, Schematic: e.Schematic,
	}
	var err error
	if job.Customization, err = e.Customization(); err != nil {
		return job, err
	}
	if repository := w.ByImager.Imager.Image(); repository != "" {
		if job.Image, err = pinned(lock.Imager.Image, repository); err != nil {
			return job, fmt.Errorf("resolve the imager's image: %w", err)
		}
		w.say("building with %s", job.Image)
	}
	list, err := e.BuildOrder()
	if err != nil {
		return job, err
	}
	for i, x := range list {
		w.say("fetching extension %s %s (%d of %d)", x.Name, x.Version, i+1, len(list))
		in, err := w.fetch(ctx, x.Ref+"@"+x.Digest, lock.Arch, strconv.Itoa(i)+".tar")
		if err != nil {
			return job, fmt.Errorf("fetch extension %s: %w", x.Name, err)
		}
		job.Extensions = append(job.Extensions, in)
	}
	if job.Overlay, err = w.overlay(ctx, lock, e); err != nil {
		return job, fmt.Errorf("fetch overlay %s: %w", e.Overlay.Name, err)
	}
	w.made = job
	return job, nil
}

// open creates two directories. The outer one is private. The inner one is mounted into a container and is writable
// for all, because user namespaces may map root in the container to any user.
func (w *workspace) open() error {
	if err := os.MkdirAll(w.ByImager.Scratch, 0o700); err != nil {
		return err
	}
	verify.Sweep(w.ByImager.Scratch, "*", verify.AbandonedAfter, os.RemoveAll)
	top, err := os.MkdirTemp(w.ByImager.Scratch, w.name+"-")
	if err != nil {
		return err
	}
	w.top, w.dir = top, filepath.Join(top, "out")
	if err := os.MkdirAll(filepath.Join(w.dir, "in"), 0o755); err != nil {
		return err
	}
	return os.Chmod(w.dir, 0o777)
}

func (w *workspace) remove() error {
	if w.top == "" {
		return nil
	}
	if err := os.RemoveAll(w.top); err != nil {
		return fault.WithHint(fmt.Errorf("remove what the imager has worked on: %w", err), "a container that runs as root leaves files of root's: remove %s", w.top)
	}
	return nil
}

// pinned returns a repository with its digest in the lock. The tag for the Talos version may have moved since.
func pinned(locked, repository string) (string, error) {
	if !strings.HasPrefix(locked, repository+"@") {
		return "", fault.WithHint(fault.LockStale.Configf("recast.lock has no digest of %s, which the imager needs to build", repository),
			"run `recast lock`: it adds the digest, and makes no node stale")
	}
	return locked, nil
}

func (w *workspace) baseInstaller(ctx context.Context, lock schematics.Lock) (ImagerInput, error) {
	in := ImagerInput{File: "in/installer-base"}
	var err error
	if in.Ref, err = pinned(lock.Imager.Base, w.ByImager.Base); err != nil {
		return in, fmt.Errorf("resolve the base installer: %w", err)
	}
	w.say("fetching %s", in.Ref)
	if err := w.ByImager.Archives.SaveLayout(ctx, in.Ref, lock.Arch, filepath.Join(w.dir, in.File)); err != nil {
		return in, fmt.Errorf("fetch the base installer: %w", err)
	}
	return in, nil
}

// overlay fetches the overlay twice: for this machine, where the overlay's programs run beside the imager, and for
// the image, which gets the overlay's files.
func (w *workspace) overlay(ctx context.Context, lock schematics.Lock, e schematics.Locked) (*ImagerOverlay, error) {
	if e.Overlay == nil {
		return nil, nil
	}
	ref := e.Overlay.Ref + "@" + e.Overlay.Digest
	host, err := w.fetch(ctx, ref, runtime.GOARCH, "overlay-host.tar")
	if err != nil {
		return nil, err
	}
	target, err := w.fetch(ctx, ref, lock.Arch, "overlay.tar")
	if err != nil {
		return nil, err
	}
	return &ImagerOverlay{Name: e.Overlay.Name, Host: host, Target: target}, nil
}

// fetch writes the files of an image into the job's directory as one tar.
func (w *workspace) fetch(ctx context.Context, ref, arch, name string) (in ImagerInput, err error) {
	in = ImagerInput{Ref: ref, File: "in/" + name}
	body, err := w.Puller.Extract(ctx, ref, arch)
	if err != nil {
		return in, err
	}
	defer func() { err = errors.Join(err, body.Close()) }()
	f, err := os.Create(filepath.Join(w.dir, in.File))
	if err != nil {
		return in, err
	}
	_, err = io.Copy(f, body)
	return in, errors.Join(err, f.Close())
}
