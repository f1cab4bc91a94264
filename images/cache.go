package images

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/recast-sh/recast/images/verify"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/savefile"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/words"
	"github.com/recast-sh/recast/schematics"
)

// Cache is a directory of ISOs and disk images that were fetched and checked.
type Cache struct {
	dir     string
	largest int64                           // bytes; the limit for one file
	free    func(dir string) (int64, error) // bytes that may be written to dir

	mu   sync.Mutex
	sums map[string]hashed // nil: not read yet
}

// NewCache returns the cache in a directory. The directory is created when a file is stored.
func NewCache(dir string) *Cache { return &Cache{dir: dir, largest: verify.Largest, free: freeSpace} }

func (c *Cache) path(name string) string { return filepath.Join(c.dir, name) }

// look returns the cached file with the given name; found is false if it does not exist. A file is hashed again only
// after its size or time has changed.
func (c *Cache) look(name string) (iso schematics.BootFile, found bool, err error) {
	f, err := os.Open(c.path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return schematics.BootFile{}, false, nil
	}
	if err != nil {
		return schematics.BootFile{}, false, fmt.Errorf("look into the image cache: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return schematics.BootFile{}, false, fmt.Errorf("look into the image cache: %w", err)
	}
	iso = schematics.BootFile{Name: name, SizeBytes: info.Size()}
	var known bool
	if iso.SHA256, known = c.known(name, info); known {
		return iso, true, nil
	}
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return schematics.BootFile{}, false, fmt.Errorf("read a cached image: %w", err)
	}
	iso.SHA256 = hex.EncodeToString(sum.Sum(nil))
	c.remember(name, info, iso.SHA256)
	return iso, true, nil
}

// store streams a file into the cache and returns it. It keeps the file only if the file is complete, equals want as
// far as want is known, and passes check, which may be nil. announced is the size that the sender promised; -1 if
// unknown.
func (c *Cache) store(body io.Reader, announced int64, want schematics.BootFile, check func(f *os.File, got schematics.BootFile) error) (iso schematics.BootFile, err error) {
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return iso, fmt.Errorf("make the image cache: %w", err)
	}
	verify.Sweep(c.dir, partial("*"), time.Hour, os.Remove)
	if err := c.checkSpace(want.Name, announced); err != nil {
		return iso, err
	}
	f, err := os.CreateTemp(c.dir, partial(want.Name))
	if err != nil {
		return iso, fmt.Errorf("make a file in the image cache: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	iso, err = receive(f, verify.Bounded(body, c.largest), announced, want)
	if err == nil && check != nil {
		err = check(f, iso)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return schematics.BootFile{}, err
	}
	if err := os.Rename(f.Name(), c.path(want.Name)); err != nil {
		return schematics.BootFile{}, fmt.Errorf("keep %s: %w", want.Name, err)
	}
	if info, err := os.Stat(c.path(want.Name)); err == nil {
		c.remember(want.Name, info, iso.SHA256)
	}
	return iso, savefile.SyncDir(c.dir)
}

// freeSpace returns how many bytes a user other than root may write to a directory's file system.
func freeSpace(dir string) (int64, error) {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err != nil {
		return 0, err
	}
	return int64(fs.Bavail) * int64(fs.Bsize), nil
}

// checkSpace refuses an announced size that is too large, before any data arrives.
func (c *Cache) checkSpace(name string, announced int64) error {
	if announced > c.largest {
		return fmt.Errorf("receive %s: %s are announced: %w", name, words.Size(announced), verify.TooLarge(c.largest))
	}
	free, err := c.free(c.dir)
	if err != nil {
		return fmt.Errorf("check the free space for the image cache: %w", err)
	}
	if announced > free {
		return fault.WithHint(fault.StorageFull.Refusedf("too little space in %s: %s needs %s, %s are free", c.dir, name, words.Size(announced), words.Size(free)),
			"recast prune --only cache removes what nothing needs there")
	}
	return nil
}

// receive writes body to a file and returns what it received. An incomplete file is an error.
func receive(f *os.File, body io.Reader, announced int64, want schematics.BootFile) (schematics.BootFile, error) {
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(f, sum), body)
	if err = errors.Join(err, f.Sync()); err != nil {
		return schematics.BootFile{}, fmt.Errorf("receive %s: after %d bytes: %w", want.Name, n, err)
	}
	iso := schematics.BootFile{Name: want.Name, SHA256: hex.EncodeToString(sum.Sum(nil)), SizeBytes: n}
	return iso, checkReceived(iso, announced, want)
}

// checkReceived compares the received file with the announced size and with the lock.
func checkReceived(got schematics.BootFile, announced int64, want schematics.BootFile) error {
	switch {
	case got.SizeBytes == 0:
		return fmt.Errorf("%s was sent without any content", want.Name)
	case announced >= 0 && got.SizeBytes != announced:
		return fmt.Errorf("%s was cut off: %d of %d bytes arrived", want.Name, got.SizeBytes, announced)
	case want.SHA256 != "" && got.SHA256 != want.SHA256:
		return fault.WithHint(
			fault.ImageDiffers.Refusedf("%s was sent with SHA-256 %s, but %s was asked for", want.Name, got.SHA256, want.SHA256),
			"it was damaged on the way, or someone changed it: run it again")
	}
	return nil
}

func (c *Cache) open(name string) (io.ReadCloser, error) { return os.Open(c.path(name)) }

func partial(name string) string { return "." + name + ".*.part" }

// sumsFile is the name of a cache's file of checksums. The file only saves time: without it, images are hashed again.
const sumsFile = ".sums.json"

// hashed is the state of a file when it was hashed.
type hashed struct {
	Size    int64     `json:"sizeBytes"`
	Changed time.Time `json:"changed"`
	SHA256  string    `json:"sha256"`
}

// known returns the checksum of a file that has not changed since it was hashed.
func (c *Cache) known(name string, info os.FileInfo) (sha256 string, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.load()
	h, ok := c.sums[name]
	return h.SHA256, ok && h.Size == info.Size() && h.Changed.Equal(info.ModTime())
}

// load reads the checksums that earlier processes have recorded, once.
func (c *Cache) load() {
	if c.sums != nil {
		return
	}
	if b, err := os.ReadFile(c.path(sumsFile)); err != nil || json.Unmarshal(b, &c.sums) != nil || c.sums == nil {
		c.sums = map[string]hashed{}
	}
}

// remember records the checksum of a file for this process and later ones.
func (c *Cache) remember(name string, info os.FileInfo, sha256 string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.load()
	c.sums[name] = hashed{Size: info.Size(), Changed: info.ModTime(), SHA256: sha256}
	for other := range c.sums {
		if _, err := os.Stat(c.path(other)); err != nil {
			delete(c.sums, other)
		}
	}
	b, err := json.Marshal(c.sums)
	if err != nil {
		return
	}
	f, err := os.CreateTemp(c.dir, partial(sumsFile))
	if err != nil {
		return
	}
	_, err = f.Write(b)
	if errClose := f.Close(); err != nil || errClose != nil || os.Rename(f.Name(), c.path(sumsFile)) != nil {
		_ = os.Remove(f.Name()) // sweep removes it if this fails
	}
}

// CachedFile is a file of ours in the image cache, or a directory in which images are verified.
type CachedFile struct {
	Name      string    `json:"name"`
	SizeBytes int64     `json:"sizeBytes"`
	Changed   time.Time `json:"changed"`
	Partial   bool      `json:"partial,omitempty"` // no image: a build's temporary file, perhaps of a killed build
}

func (f CachedFile) String() string { return f.Name + " in the cache" }

// The names of temporary files of Cache and Verifier: os.CreateTemp and os.MkdirTemp replace "*" by digits.
var (
	ourPartial = regexp.MustCompile(`^\.(.+\.(?:iso|qcow2))\.\d+\.part$`)
	ourScratch = regexp.MustCompile(`^\.verify-\d+$`)
)

// Files lists our files in the cache, sorted by name. Links, and files with other names, are not ours.
func (c *Cache) Files() ([]CachedFile, error) {
	root, err := os.OpenRoot(c.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list the image cache: %w", err)
	}
	defer root.Close()
	entries, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return nil, fmt.Errorf("list the image cache: %w", err)
	}
	var files []CachedFile
	for _, e := range entries {
		partial := isPartial(e)
		if !partial && !(e.Type().IsRegular() && ourISO.MatchString(e.Name())) {
			continue
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue // deleted meanwhile
		}
		if err != nil {
			return nil, fmt.Errorf("list the image cache: %w", err)
		}
		files = append(files, CachedFile{Name: e.Name(), SizeBytes: sizeBelow(root.FS(), e.Name()), Changed: info.ModTime(), Partial: partial})
	}
	return files, nil
}

func isPartial(e fs.DirEntry) bool {
	if e.IsDir() {
		return ourScratch.MatchString(e.Name())
	}
	m := ourPartial.FindStringSubmatch(e.Name())
	return e.Type().IsRegular() && m != nil && ourISO.MatchString(m[1])
}

// sizeBelow is the size of a file, or of all files in a directory; an unreadable file counts as 0.
func sizeBelow(tree fs.FS, name string) (sum int64) {
	_ = fs.WalkDir(tree, name, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil
		}
		if info, err := d.Info(); err == nil {
			sum += info.Size()
		}
		return nil
	})
	return sum
}

// CacheVerdict is the decision about a file in the cache.
type CacheVerdict struct {
	CachedFile
	Goes    string   `json:"goes,omitempty"` // why the file goes, if that is not obvious
	Keep    []string `json:"keep,omitempty"` // why the file stays; none: it can go
	Removed bool     `json:"removed"`        // the file no longer exists
}

// JudgeCache decides for each file whether it can go. The rule of JudgeISOs decides about ISOs and disk images. Age
// alone decides about leftovers of killed builds, because another build may be using them.
func JudgeCache(files []CachedFile, uses []Use, need Needed, olderThan time.Duration, now time.Time) []CacheVerdict {
	verdicts := []CacheVerdict{}
	for _, f := range files {
		v := CacheVerdict{CachedFile: f}
		switch {
		case !f.Partial:
			v.Keep = keepISO(f.Name, f.Changed, uses, need, olderThan, now)
		case now.Sub(f.Changed) < verify.AbandonedAfter:
			v.Keep = []string{"a build may be using it: it is younger than " + shortDuration(verify.AbandonedAfter)}
		default:
			v.Goes = "a killed build has left it"
		}
		verdicts = append(verdicts, v)
	}
	return verdicts
}

// CachePruner removes the files of the cache that can go.
type CachePruner struct {
	Cache    *Cache
	Verdicts []CacheVerdict // Removed is set for each file that was removed
	Write    Write
}

// Steps returns one step for each file that has no reason to stay.
func (p CachePruner) Steps() []step.Step {
	return removals(p.Verdicts, func(v *CacheVerdict) removal {
		return removal{
			id: "delete-cached-" + v.Name, kind: "delete-cached", what: v, keep: v.Keep, removed: &v.Removed,
			gone: func(context.Context) (bool, error) {
				_, err := os.Lstat(p.Cache.path(v.Name))
				if errors.Is(err, fs.ErrNotExist) {
					return true, nil
				}
				return false, err
			},
			do: func(ctx context.Context) error {
				return p.Write(ctx, func(context.Context) error { return p.Cache.remove(v.CachedFile) })
			},
		}
	})
}

// remove deletes a file unless it was changed since it was listed. An os.Root follows no link out of the cache.
func (c *Cache) remove(f CachedFile) error {
	root, err := os.OpenRoot(c.dir)
	if err != nil {
		return fmt.Errorf("open the image cache: %w", err)
	}
	defer root.Close()
	info, err := root.Lstat(f.Name)
	if err != nil {
		return fmt.Errorf("look at %s: %w", f, err)
	}
	if !info.ModTime().Equal(f.Changed) {
		return retryHint(fault.PruneRefused.Refusedf("%s was changed meanwhile: it stays", f))
	}
	return root.RemoveAll(f.Name)
}

// SignatureMode says what to do about an installer without a valid signature.
type SignatureMode string

// The modes of signature checks.
const (
	SignatureRequire SignatureMode = "require" // refuse it
	SignatureWarn    SignatureMode = "warn"    // report it
	SignatureOff     SignatureMode = "off"     // do not check
)

// SignaturePolicy is the user's choice for the installers of a factory.
type SignaturePolicy struct {
	Mode SignatureMode
	// Key returns the public key, in PEM, that must have signed the installers. Nil: the key that the factory
	// publishes, which at least detects that the key changes.
	Key func() ([]byte, error)
}

// settled reports whether the signer in the lock satisfies the policy.
func (p SignaturePolicy) settled(e schematics.Locked) (bool, error) {
	if p.Mode != SignatureRequire || p.Key == nil {
		return p.Mode != SignatureRequire || e.Signer != "", nil
	}
	key, err := p.key()
	return err == nil && key.fingerprint == e.Signer, err
}

// key reads the user's key.
func (p SignaturePolicy) key() (signingKey, error) {
	text, err := p.Key()
	if err != nil {
		return signingKey{}, fault.Configf("images.signingKey: %w", err)
	}
	key, err := parseKey(text)
	if err != nil {
		return signingKey{}, fault.WithHint(fault.Configf("images.signingKey: %w", err), "it is a PEM file that begins with -----BEGIN PUBLIC KEY-----")
	}
	return key, nil
}

// signer checks who signed an installer (repository@digest) and returns the fingerprint of the key, to be recorded;
// "" without an error if there is no valid signature and the policy accepts this. note receives what the policy only
// warns about.
func (b Builder) signer(ctx context.Context, name, installer string, note func(text string)) (string, error) {
	if b.Signature.Mode == SignatureOff {
		return "", nil
	}
	fingerprint, err := b.signature(ctx, name, installer)
	if err == nil || b.Signature.Mode == SignatureRequire || fault.KindOf(err) != fault.Refused {
		return fingerprint, err
	}
	for _, hint := range append([]string{err.Error()}, fault.Hints(err)...) {
		note("warning: " + strings.ReplaceAll(hint, "\n", "; "))
	}
	return "", nil
}

// signature returns the fingerprint of the key that signed an installer. Without a valid signature it fails with kind
// Refused.
func (b Builder) signature(ctx context.Context, name, installer string) (string, error) {
	_, digest, _ := strings.Cut(installer, "@")
	key, err := b.signingKey(ctx)
	if err != nil {
		return "", err
	}
	signatures, err := b.Puller.Signatures(ctx, installer)
	if errors.Is(err, ErrDenied) {
		return "", fault.WithHint(fault.ImageDiffers.Refusedf("look for the installer's signature: %w", err),
			"some registries answer so if there is no signature: check whether the factory signs its installers")
	}
	if err != nil {
		return "", fmt.Errorf("look for the installer's signature: %w", err)
	}
	if err := key.verify(installer, digest, signatures); err != nil {
		return "", err
	}
	if known := b.signers(name); len(known) > 0 && !slices.Contains(known, key.fingerprint) {
		return "", fault.WithHint(
			fault.ImageDiffers.Refusedf("installer %s is signed by the key %s, but the lock knows %s", installer, key.fingerprint, strings.Join(known, ", ")),
			"the factory has a new key: ask its operator. To trust the new key, put it into a file and name it in images.signingKey")
	}
	return key.fingerprint, nil
}

// signers returns the keys that the lock knows. It returns none if the user names a key: that key is trusted, whoever
// signed before.
func (b Builder) signers(name string) []string {
	if b.Signature.Key != nil {
		return nil
	}
	lock := b.Ledger.Lock()
	if own := lock.Schematics[name].Signer; own != "" {
		return []string{own}
	}
	return lock.KnownSigners()
}

// signingKey is a public key that signs installers.
type signingKey struct {
	key         crypto.PublicKey
	fingerprint string // SHA-256 of the key's DER form, in hex
}

func (b Builder) signingKey(ctx context.Context) (signingKey, error) {
	if b.Signature.Key != nil {
		return b.Signature.key()
	}
	text, err := b.Factory.SigningKey(ctx)
	if err != nil {
		return signingKey{}, fmt.Errorf("get the factory's signing key: %w", err)
	}
	if len(text) == 0 {
		return signingKey{}, fault.WithHint(fault.ImageDiffers.Refusedf("the factory publishes no key with which it signs installers"),
			"name the key in images.signingKey, or set images.signature to off: an installer's content is compared with the lock in any case")
	}
	key, err := parseKey(text)
	if err != nil {
		return signingKey{}, fault.ImageDiffers.Refusedf("the factory's signing key: %w", err)
	}
	return key, nil
}

func parseKey(text []byte) (signingKey, error) {
	block, rest := pem.Decode(text)
	if block == nil || len(bytes.TrimSpace(rest)) > 0 {
		return signingKey{}, errors.New("it is not one PEM block")
	}
	if block.Type != "PUBLIC KEY" {
		return signingKey{}, fmt.Errorf("it is a %q, not a public key", block.Type)
	}
	key, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		return signingKey{}, err
	}
	der, err := x509.MarshalPKIXPublicKey(key) // one form, whatever the encoding
	if err != nil {
		return signingKey{}, err
	}
	sum := sha256.Sum256(der)
	return signingKey{key: key, fingerprint: hex.EncodeToString(sum[:])}, nil
}

// verify accepts an image if one of its signatures is by the key and names the
// image's digest: see the Simple Signing format of cosign's specification.
func (k signingKey) verify(ref, digest string, signatures []Signature) error {
	var others []string
	for _, s := range signatures {
		if !k.signed(s) {
			continue
		}
		signed, err := signedDigest(s.Payload)
		if err != nil {
			return fault.ImageDiffers.Refusedf("the signature of %s: %w", ref, err)
		}
		if signed == digest {
			return nil
		}
		others = append(others, signed)
	}
	const rebuild = "rebuild the installer, or set images.signature to warn; its content is compared with the lock in any case"
	switch {
	case len(signatures) == 0:
		return fault.WithHint(fault.ImageDiffers.Refusedf("installer %s is not signed", ref), rebuild)
	case len(others) > 0:
		return fault.WithHint(fault.ImageDiffers.Refusedf("the signature of installer %s is for another image, %s: someone has copied it there", ref, strings.Join(others, ", ")),
			"do not use this installer before you know who did it")
	default:
		return fault.WithHint(fault.ImageDiffers.Refusedf("installer %s is signed, but not by the key %s", ref, k.fingerprint),
			"someone else signed it, or the factory has another key now: compare images.signingKey with the factory's /oci/cosign/signing-key.pub")
	}
}

// signed reports whether the key made the signature s.
func (k signingKey) signed(s Signature) bool {
	sum := sha256.Sum256(s.Payload)
	switch key := k.key.(type) {
	case *ecdsa.PublicKey:
		return ecdsa.VerifyASN1(key, sum[:], s.Signature)
	case *rsa.PublicKey:
		return rsa.VerifyPKCS1v15(key, crypto.SHA256, sum[:], s.Signature) == nil
	case ed25519.PublicKey:
		return ed25519.Verify(key, s.Payload, s.Signature)
	default:
		return false
	}
}

// signedDigest reads the digest that a signature signs.
func signedDigest(payload []byte) (string, error) {
	var p struct {
		Critical struct {
			Type  string `json:"type"`
			Image struct {
				Digest string `json:"docker-manifest-digest"`
			} `json:"image"`
		} `json:"critical"`
	}
	if err := json.Unmarshal(payload, &p); err != nil {
		return "", fmt.Errorf("its payload is not JSON: %w", err)
	}
	if p.Critical.Type != "cosign container image signature" {
		return "", fmt.Errorf("it signs a %q, not a container image", p.Critical.Type)
	}
	if !schematics.IsDigest(p.Critical.Image.Digest) {
		return "", fmt.Errorf("it signs %q, which is not a digest", p.Critical.Image.Digest)
	}
	return p.Critical.Image.Digest, nil
}
