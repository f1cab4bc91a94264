// Package images makes the images that a lock describes: a [Builder] builds, fetches and checks them, and a
// [Publisher] brings the boot ISOs and disk images to Proxmox storage. A step is skipped if its result exists.
package images

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
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

// resolveInstaller returns the installer to verify: the lock's if it can be pulled, otherwise what the factory
// builds.
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

// progress returns a function that turns a byte count into an occasional note: every
// tenth of the total, or every 64 MiB if the total is unknown. A count that
// decreases belongs to another attempt.
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

// ReadProgress parses the note of a transfer: done and total are bytes, rest is the whole note without a comma at its
// end. ok is false for any other note.
func ReadProgress(note string) (done, total int64, rest string, ok bool) {
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
