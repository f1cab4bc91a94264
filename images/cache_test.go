package images

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/words"
	"github.com/recast-sh/recast/schematics"
)

// endless is a stream that never ends.
type endless struct{ read int64 }

func (e *endless) Read(p []byte) (int, error) {
	clear(p)
	e.read += int64(len(p))
	return len(p), nil
}

// slack is how much may be read beyond a bound at once.
const slack = 1 << 16

// TestStoreIsBounded: an ISO's sender can neither fill the disk nor send for ever.
func TestStoreIsBounded(t *testing.T) {
	t.Parallel()
	type row struct {
		announced int64
		free      int64
		read      int64 // of the body, at most
		want      string
		hint      string
	}
	must.Each(t, map[string]row{
		"nothing announced": {-1, 1 << 40, mib + slack, "receive x.iso: after ", "see what answers at images.factory"},
		"as much announced": {mib, 1 << 40, mib + slack, "more than 1 MiB, which no image of Talos has", "see what answers at images.factory"},
		"more announced":    {mib + 1, 1 << 40, 0, "receive x.iso: 1 MiB are announced: more than 1 MiB, which no image of Talos has", "see what answers at images.factory"},
		"too little space":  {mib, mib / 2, 0, "x.iso needs 1 MiB, 512 KiB are free", "recast prune --only cache"},
	}, func(t *testing.T, tc row) {
		c := NewCache(t.TempDir())
		c.largest, c.free = mib, func(dir string) (int64, error) {
			must.Equal(t, "directory whose space is looked at", c.dir, dir)
			return tc.free, nil
		}
		var body endless
		_, err := c.store(&body, tc.announced, schematics.BootFile{Name: "x.iso"}, nil)
		if fault.KindOf(err) != fault.Refused || !strings.Contains(err.Error(), tc.want) || !strings.HasPrefix(strings.Join(fault.Hints(err), "; "), tc.hint) {
			t.Errorf("error = %v (%v), %q", err, fault.KindOf(err), fault.Hints(err))
		}
		must.Hold(t, body.read <= tc.read, "%d bytes were read, %d suffice", body.read, tc.read)
		if left, err := os.ReadDir(c.dir); err != nil || len(left) > 0 {
			t.Errorf("left behind: %v %v", left, err)
		}
	})
}

// TestStoreTakesTheLargest: a size equal to the bound is not refused.
func TestStoreTakesTheLargest(t *testing.T) {
	t.Parallel()
	c := NewCache(t.TempDir())
	c.largest = mib
	iso, err := c.store(io.LimitReader(&endless{}, mib), mib, schematics.BootFile{Name: "x.iso"}, nil)
	must.Hold(t, err == nil && iso.SizeBytes == mib, "stored %+v, %v", iso, err)
}

// TestFreeSpace: the real file system has some, and a missing directory is an error.
func TestFreeSpace(t *testing.T) {
	t.Parallel()
	if n, err := freeSpace(t.TempDir()); err != nil || n <= 0 {
		t.Errorf("%d bytes are free, %v", n, err)
	}
	if _, err := freeSpace(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("a missing directory has space")
	}
}

// TestCacheRemembersSums: a file with an unchanged size and time is not hashed again, even by another process.
func TestCacheRemembersSums(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	iso := must.Get(NewCache(dir).store(strings.NewReader("content"), -1, schematics.BootFile{Name: "x.iso"}, nil))(t)
	file := NewCache(dir).path("x.iso")
	info := must.Get(os.Stat(file))(t)
	look := func(why, want string) {
		t.Helper()
		got, found, err := NewCache(dir).look("x.iso")
		must.Hold(t, err == nil && found && got.SHA256 == hash([]byte(want)),
			"%s: %+v, %t, %v; want the sum of %q", why, got, found, err, want)
	}
	write := func(content string) {
		t.Helper()
		must.Do(t, os.WriteFile(file, []byte(content), 0o600))
	}
	write("CONTENT")
	must.Do(t, os.Chtimes(file, info.ModTime(), info.ModTime()))
	look("same size, same time", "content")
	later := info.ModTime().Add(1)
	must.Do(t, os.Chtimes(file, later, later))
	look("another time", "CONTENT")
	write("longer content")
	must.Do(t, os.Chtimes(file, later, later))
	look("another size", "longer content")
	must.Do(t, os.WriteFile(NewCache(dir).path(sumsFile), []byte("{"), 0o600))
	look("what is remembered is damaged", "longer content")
	must.Equal(t, "stored", hash([]byte("content")), iso.SHA256)
}

// cacheDay is the modification time of everything in a fullCache.
var cacheDay = time.Date(2026, 1, 10, 0, 0, 0, 0, time.UTC)

// fullCache has files of ours, and files that only look like ours or lead out of it, to outside.
func fullCache(t *testing.T) (c *Cache, outside string) {
	t.Helper()
	c, outside = NewCache(filepath.Join(t.TempDir(), "iso")), t.TempDir()
	part := "." + isoOf(buildA) + ".17.part"
	err := os.WriteFile(filepath.Join(outside, "precious"), []byte("precious"), 0o600)
	for _, dir := range []string{".verify-17/1", ".verify-x", ".verify-", isoOf("cccccccccccc"), ".verify-18.part", "." + isoOf(buildA) + ".18.part"} {
		err = errors.Join(err, os.MkdirAll(c.path(dir), 0o700))
	}
	for _, name := range []string{
		isoOf(buildA), isoOf(buildB), part, ".verify-17/1/uki", "debian.iso", ".debian.iso.1.part", "." + isoOf(buildA) + ".x.part", ".verify-19", "note.txt",
	} {
		err = errors.Join(err, os.WriteFile(c.path(name), []byte("12345"), 0o600))
	}
	for name, to := range map[string]string{
		isoOf("dddddddddddd"): filepath.Join(outside, "precious"), ".verify-20": outside, ".verify-17/out": outside,
		"." + isoOf(buildA) + ".19.part": filepath.Join(outside, "precious"),
	} {
		err = errors.Join(err, os.Symlink(to, c.path(name)))
	}
	for _, name := range []string{isoOf(buildA), isoOf(buildB), part, ".verify-17"} {
		err = errors.Join(err, os.Chtimes(c.path(name), cacheDay, cacheDay))
	}
	must.Do(t, err)
	return c, outside
}

func cachedFile(name string) CachedFile {
	return CachedFile{Name: name, SizeBytes: 5, Changed: cacheDay.Local(), Partial: strings.HasPrefix(name, ".")}
}

func TestCacheFiles(t *testing.T) {
	t.Parallel()
	c, _ := fullCache(t)
	got := must.Get(c.Files())(t)
	want := []CachedFile{cachedFile("." + isoOf(buildA) + ".17.part"), cachedFile(".verify-17"), cachedFile(isoOf(buildA)), cachedFile(isoOf(buildB))}
	must.Equal(t, "our files", want, got)
	must.Equal(t, "of no cache", []CachedFile(nil), must.Get(NewCache(filepath.Join(t.TempDir(), "none")).Files())(t))
	file := filepath.Join(t.TempDir(), "file")
	must.Do(t, os.WriteFile(file, nil, 0o600))
	if _, err := NewCache(file).Files(); err == nil {
		t.Error("a file counts as an empty cache")
	}
}

func TestJudgeCache(t *testing.T) {
	t.Parallel()
	a, scratch, part := cachedFile(isoOf(buildA)), cachedFile(".verify-17"), cachedFile("."+isoOf(buildA)+".17.part")
	const working = "a build may be using it: it is younger than 24h"
	left := "a killed build has left it"
	type row struct {
		file CachedFile
		uses []Use
		need Needed
		old  time.Duration // than what stays
		age  time.Duration
		want CacheVerdict
	}
	must.Each(t, map[string]row{
		"nothing needs it":      {file: a, old: week, age: week, want: CacheVerdict{}},
		"the lock":              {file: a, need: Needed{Names: map[string]string{isoOf(buildA): "recast.lock has it"}}, age: week, want: CacheVerdict{Keep: []string{"recast.lock has it"}}},
		"a build":               {file: a, need: Needed{Builds: map[string]string{buildA + "00": "wk1 was made from it"}}, age: week, want: CacheVerdict{Keep: []string{"wk1 was made from it"}}},
		"a VM":                  {file: a, uses: []Use{{By: "VM 2", Values: []string{"local:iso/" + isoOf(buildA)}}}, age: week, want: CacheVerdict{Keep: []string{"VM 2 refers to it"}}},
		"young":                 {file: a, old: week, age: week - time.Minute, want: CacheVerdict{Keep: []string{"it is younger than 168h"}}},
		"scratch of a build":    {file: scratch, age: 24*time.Hour - time.Second, want: CacheVerdict{Keep: []string{working}}},
		"left scratch":          {file: scratch, old: week, age: 24 * time.Hour, want: CacheVerdict{Goes: left}},
		"a download":            {file: part, age: time.Minute, want: CacheVerdict{Keep: []string{working}}},
		"left, of a locked ISO": {file: part, need: Needed{Names: map[string]string{isoOf(buildA): "recast.lock has it"}}, age: week, want: CacheVerdict{Goes: left}},
	}, func(t *testing.T, tc row) {
		tc.want.CachedFile = tc.file
		got := JudgeCache([]CachedFile{tc.file}, tc.uses, tc.need, tc.old, cacheDay.Add(tc.age))
		must.Equal(t, "result", []CacheVerdict{tc.want}, got)
	})
}

func TestCachePruner(t *testing.T) {
	t.Parallel()
	type row struct {
		change func(c *Cache, guard *error) error
		gone   []string
		fails  string
		kind   fault.Kind
	}
	must.Each(t, map[string]row{
		"all that can go": {gone: []string{"." + isoOf(buildA) + ".17.part", ".verify-17", isoOf(buildA)}},
		"the claim is lost": {
			change: func(_ *Cache, guard *error) error {
				*guard = fault.As(fault.Claimed, errors.New("lost the claim"))
				return nil
			}, fails: "lost the claim", kind: fault.Claimed,
		},
		"one is at work on again": {
			change: func(c *Cache, _ *error) error { return os.Mkdir(c.path(".verify-17/2"), 0o700) },
			gone:   []string{"." + isoOf(buildA) + ".17.part"},
			fails:  ".verify-17 in the cache was changed meanwhile: it stays", kind: fault.Refused,
		},
		"one leads elsewhere now": {
			change: func(c *Cache, _ *error) error {
				return errors.Join(os.RemoveAll(c.path(".verify-17")), os.Symlink(filepath.Dir(c.dir), c.path(".verify-17")))
			},
			gone:  []string{"." + isoOf(buildA) + ".17.part"},
			fails: "it stays", kind: fault.Refused,
		},
		"one is gone": {
			change: func(c *Cache, _ *error) error { return os.RemoveAll(c.path(".verify-17")) },
			gone:   []string{"." + isoOf(buildA) + ".17.part", ".verify-17", isoOf(buildA)},
		},
	}, func(t *testing.T, tc row) {
		c, outside := fullCache(t)
		files := must.Get(c.Files())(t)
		before := must.Get(os.ReadDir(c.dir))(t)
		need := Needed{Builds: map[string]string{buildB: "wk1 was made from it"}}
		p := CachePruner{Cache: c, Verdicts: JudgeCache(files, nil, need, 0, cacheDay.Add(week))}
		var guard error
		p.Write = unless(&guard)
		if tc.change != nil {
			must.Do(t, tc.change(c, &guard))
		}
		prune(t, p.Steps(), tc.fails, tc.kind)
		var gone, marked []string
		for _, e := range before {
			if _, err := os.Lstat(c.path(e.Name())); err != nil {
				gone = append(gone, e.Name())
			}
		}
		for _, v := range p.Verdicts {
			if v.Removed {
				marked = append(marked, v.Name)
			}
		}
		diff := cmp.Diff(tc.gone, gone)
		must.Hold(t, diff == "" && cmp.Diff(gone, marked) == "", "marked %q; gone (-want +got):\n%s", marked, diff)
		if data, err := os.ReadFile(filepath.Join(outside, "precious")); err != nil || string(data) != "precious" {
			t.Errorf("outside of the cache: %q, %v", data, err)
		}
	})
}

func TestReadProgress(t *testing.T) {
	t.Parallel()
	for note, want := range map[string]struct {
		done, total int64
		rest        string
		ok          bool
	}{
		words.Size(300<<20) + " of " + words.Size(1300<<20):           {300 << 20, 1300 << 20, "300 MiB of 1300 MiB", true},
		words.Size(5<<10) + " of " + words.Size(2<<20) + ", 40 MiB/s": {5 << 10, 2 << 20, "5 KiB of 2 MiB, 40 MiB/s", true},
		"64 MiB, 12 MiB/s":                        {},
		"2 of 3 members":                          {},
		"pods of default, kube-system of 3 nodes": {},
		"beginning again":                         {},
		"0 KiB of 0 KiB":                          {},
		"":                                        {},
		"99999999999999999999 MiB of 99999999999999999999 MiB": {},
	} {
		done, total, rest, ok := ReadProgress(note)
		must.Hold(t, done == want.done && total == want.total && rest == want.rest && ok == want.ok,
			"%q: %d of %d, %q, %t", note, done, total, rest, ok)
	}
}

// signing is a key pair.
type signing struct {
	private crypto.Signer
	pem     []byte
	print   string
}

func newSigning(t *testing.T, private crypto.Signer) signing {
	t.Helper()
	der := must.Get(x509.MarshalPKIXPublicKey(private.Public()))(t)
	sum := sha256.Sum256(der)
	return signing{
		private: private, pem: pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), print: hex.EncodeToString(sum[:]),
	}
}

func newKey(t *testing.T) signing {
	t.Helper()
	key := must.Get(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	return newSigning(t, key)
}

// sign signs an image as cosign does.
func (s signing) sign(t *testing.T, digest string) Signature {
	t.Helper()
	return s.signPayload(t, fmt.Sprintf(
		`{"critical":{"identity":{"docker-reference":"x"},"image":{"docker-manifest-digest":%q},"type":"cosign container image signature"},"optional":null}`, digest))
}

func (s signing) signPayload(t *testing.T, payload string) Signature {
	t.Helper()
	sum, opts := sha256.Sum256([]byte(payload)), crypto.SignerOpts(crypto.SHA256)
	message := sum[:]
	if _, plain := s.private.(ed25519.PrivateKey); plain {
		message, opts = []byte(payload), crypto.Hash(0)
	}
	signature := must.Get(s.private.Sign(rand.Reader, message, opts))(t)
	return Signature{Payload: []byte(payload), Signature: signature}
}

func TestSignatures(t *testing.T) {
	t.Parallel()
	rsaKey := must.Get(rsa.GenerateKey(rand.Reader, 2048))(t)
	_, edKey, err := ed25519.GenerateKey(rand.Reader)
	must.Do(t, err)
	key, other := newKey(t), newKey(t)
	const ref = "factory.example/installer/x@"
	is, was := digest("is"), digest("was")
	broken := key.sign(t, is)
	broken.Signature = append([]byte(nil), broken.Signature...)
	broken.Signature[len(broken.Signature)-1] ^= 1
	edited := key.sign(t, was)
	edited.Payload = key.sign(t, is).Payload
	notBy := "installer " + ref + is + " is signed, but not by the key " + key.print
	type row struct {
		key  signing
		list []Signature
		want string
	}
	must.Each(t, map[string]row{
		"ECDSA":             {key, []Signature{key.sign(t, is)}, ""},
		"RSA":               {newSigning(t, rsaKey), []Signature{newSigning(t, rsaKey).sign(t, is)}, ""},
		"Ed25519":           {newSigning(t, edKey), []Signature{newSigning(t, edKey).sign(t, is)}, ""},
		"among others":      {key, []Signature{other.sign(t, is), key.sign(t, was), key.sign(t, is)}, ""},
		"none":              {key, nil, "installer " + ref + is + " is not signed"},
		"by someone else":   {key, []Signature{other.sign(t, is)}, notBy},
		"damaged":           {key, []Signature{broken}, notBy},
		"for other content": {key, []Signature{edited}, notBy},
		"of another image": {
			key,
			[]Signature{key.sign(t, was)},
			"the signature of installer " + ref + is + " is for another image, " + was + ": someone has copied it there",
		},
		"of something else": {
			key,
			[]Signature{key.signPayload(t, `{"critical":{"type":"atomic container signature","image":{"docker-manifest-digest":"`+is+`"}}}`)},
			"the signature of " + ref + is + `: it signs a "atomic container signature", not a container image`,
		},
		"of no digest": {
			key, []Signature{key.sign(t, "latest")}, "the signature of " + ref + is + `: it signs "latest", which is not a digest`,
		},
	}, func(t *testing.T, tc row) {
		k := must.Get(parseKey(tc.key.pem))(t)
		must.Equal(t, "fingerprint", tc.key.print, k.fingerprint)
		err := k.verify(ref+is, is, tc.list)
		must.Equal(t, "result", tc.want, must.Text(err))
		if tc.want == "" {
			return
		}
		must.Equal(t, "kind", fault.Refused, fault.KindOf(err))
		t.Attr("corruptions-caught", "1")
	})
}

func TestSigningKeysRefused(t *testing.T) {
	t.Parallel()
	key := newKey(t)
	type row struct {
		text []byte
		want string
	}
	must.Each(t, map[string]row{
		"no PEM":    {[]byte("<html>"), "it is not one PEM block"},
		"two":       {append(append([]byte(nil), key.pem...), key.pem...), "it is not one PEM block"},
		"a private": {pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("x")}), `it is a "PRIVATE KEY", not a public key`},
		"damaged":   {pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: []byte("x")}), "asn1: "},
	}, func(t *testing.T, tc row) {
		if _, err := parseKey(tc.text); !strings.HasPrefix(must.Text(err), tc.want) {
			t.Errorf("err = %v, want %q", err, tc.want)
		}
	})
}

// TestSignaturePolicy builds one installer under every policy.
func TestSignaturePolicy(t *testing.T) {
	t.Parallel()
	key, other := newKey(t), newKey(t)
	type row struct {
		mode      SignatureMode
		published []byte // by the factory
		own       []byte // the user's choice
		signers   []signing
		locked    string // fingerprint
		before    string // that of the lock before
		wantErr   string
		wantNote  string
		want      string // fingerprint in the lock
	}
	must.Each(t, map[string]row{
		"signed":                  {mode: SignatureRequire, published: key.pem, signers: []signing{key}, want: key.print},
		"signed, as locked":       {mode: SignatureRequire, published: key.pem, signers: []signing{key}, locked: key.print, want: key.print},
		"not looked at":           {mode: SignatureOff},
		"unsigned":                {mode: SignatureRequire, published: key.pem, wantErr: " is not signed"},
		"unsigned, a warning":     {mode: SignatureWarn, published: key.pem, wantNote: " is not signed"},
		"no key":                  {mode: SignatureRequire, wantErr: "the factory publishes no key"},
		"no key, a warning":       {mode: SignatureWarn, wantNote: "the factory publishes no key"},
		"another key":             {mode: SignatureRequire, published: other.pem, signers: []signing{other}, locked: key.print, wantErr: "but the lock knows " + key.print},
		"another key, a warning":  {mode: SignatureWarn, published: other.pem, signers: []signing{other}, locked: key.print, wantNote: "but the lock knows " + key.print},
		"as before":               {mode: SignatureRequire, published: key.pem, signers: []signing{key}, before: key.print, want: key.print},
		"another than before":     {mode: SignatureRequire, published: other.pem, signers: []signing{other}, before: key.print, wantErr: "but the lock knows " + key.print},
		"the user's key":          {mode: SignatureRequire, published: other.pem, own: key.pem, signers: []signing{key}, want: key.print},
		"the user's other key":    {mode: SignatureRequire, own: key.pem, signers: []signing{key}, locked: other.print, want: key.print},
		"not by the user's key":   {mode: SignatureRequire, published: other.pem, own: key.pem, signers: []signing{other}, wantErr: "but not by the key " + key.print},
		"the user's key is wrong": {mode: SignatureRequire, own: []byte("x"), wantErr: "images.signingKey: it is not one PEM block"},
	}, func(t *testing.T, tc row) {
		b := newBench(t)
		lock := lockOf(t)
		if tc.before != "" {
			lock.Signers = []string{tc.before}
		}
		for _, s := range lock.Names() {
			e := lock.Schematics[s]
			e.Signer = tc.locked
			lock.Schematics[s] = e
		}
		b.again(lock)
		b.factory.key = tc.published
		b.factory.sign = func(digest string) (list []Signature) {
			for _, s := range tc.signers {
				list = append(list, s.sign(t, digest))
			}
			return list
		}
		builder := b.builder()
		builder.Signature.Mode = tc.mode
		if tc.own != nil {
			builder.Signature.Key = func() ([]byte, error) { return tc.own, nil }
		}
		err := b.run(t, builder.Step())
		must.Be(t, (err == nil) == (tc.wantErr == "") && strings.Contains(must.Text(err), tc.wantErr),
			"err = %v, want %q", err, tc.wantErr)
		notes := strings.Join(b.notes, "\n")
		must.Hold(t, strings.Contains(notes, tc.wantNote) && strings.Contains(notes, "warning") == (tc.wantNote != ""),
			"notes:\n%s\nwant %q", notes, tc.wantNote)
		e := b.ledger.Lock().Schematics["default"]
		must.Hold(t, err == nil || e.Installer == "", "the installer is recorded despite the error")
		must.Hold(t, err != nil || e.Signer == tc.want && e.Installer != "",
			"signer = %q of %q, want %q", e.Signer, e.Installer, tc.want)
	})
}

// TestRequireLater: what was built without a check is checked once the policy requires it, and only then.
func TestRequireLater(t *testing.T) {
	t.Parallel()
	key := newKey(t)
	b := newBench(t)
	b.factory.key = key.pem
	b.factory.sign = func(digest string) []Signature { return []Signature{key.sign(t, digest)} }
	build := func(mode SignatureMode) error {
		b.again(b.saved)
		builder := b.builder()
		builder.Signature.Mode = mode
		return b.run(t, builder.Step())
	}
	must.Do(t, errors.Join(build(SignatureOff), build(SignatureWarn)))
	if b.saved.Schematics["default"].Signer != "" || b.saves != 0 {
		t.Errorf("signer %q, %d saves", b.saved.Schematics["default"].Signer, b.saves)
	}
	must.Do(t, build(SignatureRequire))
	must.Equal(t, "signer", key.print, b.saved.Schematics["default"].Signer)
	must.Equal(t, "downloads of ISOs", 0, b.factory.downloads)
	err := build(SignatureRequire)
	must.Hold(t, err == nil && b.saves == 0, "again: %v, %d saves", err, b.saves)
}

// TestSignerStays: a verified signer of the same bytes is not forgotten because they moved and nothing is checked.
func TestSignerStays(t *testing.T) {
	t.Parallel()
	key := newKey(t)
	b := newBench(t)
	b.factory.key = key.pem
	b.factory.sign = func(digest string) []Signature { return []Signature{key.sign(t, digest)} }
	builder := b.builder()
	builder.Signature.Mode = SignatureRequire
	must.Do(t, b.run(t, builder.Step()))
	lock := b.saved.Clone()
	e := lock.Schematics["default"]
	factory := e.Installer
	_, bytes, _ := strings.Cut(factory, "@")
	e.Installer = "former.example/mirror@" + bytes
	lock.Schematics["default"] = e
	b.again(lock)
	must.Do(t, b.run(t, b.builder().Step()))
	if e := b.saved.Schematics["default"]; e.Signer != key.print || e.Installer != factory {
		t.Errorf("signer = %q of %s", e.Signer, e.Installer)
	}
}

// withoutSignatures is a registry that denies tags that do not exist, as Artifactory does (sigstore/cosign issue 2973)
// and as factories expect of theirs (image-factory, internal/frontend/http/registry.go).
type withoutSignatures struct{ Puller }

func (withoutSignatures) Signatures(context.Context, string) ([]Signature, error) {
	return nil, fmt.Errorf("403: %w", ErrDenied)
}

func TestSignaturesDenied(t *testing.T) {
	t.Parallel()
	for mode, refused := range map[SignatureMode]bool{SignatureRequire: true, SignatureWarn: false} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			b.factory.key = newKey(t).pem
			builder := b.builder()
			builder.Puller, builder.Signature.Mode = withoutSignatures{builder.Puller}, mode
			err := b.run(t, builder.Step())
			must.Be(t, refused == (fault.KindOf(err) == fault.Refused) && (refused || err == nil), "err = %v", err)
			if notes := strings.Join(b.notes, "\n"); strings.Contains(notes, "warning: look for the installer's signature: 403") == refused {
				t.Errorf("notes:\n%s", notes)
			}
		})
	}
}
