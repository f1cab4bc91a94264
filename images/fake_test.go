package images

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"testing"

	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/schematics"
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

// lockOf resolves schematics "default", with one extension, and "plain", with none.
func lockOf(t *testing.T) schematics.Lock {
	t.Helper()
	l, _, err := schematics.Resolve(t.Context(), schematics.Request{
		Talos: "v1.13.9", Arch: "amd64", Platform: "nocloud",
		Files: map[string]schematics.File{
			"default": {Path: "default.yaml", Data: []byte("customization: {systemExtensions: {officialExtensions: [" + agent + "]}}\n")},
			"plain":   {Path: "plain.yaml", Data: []byte("customization: {}\n")},
		},
	}, catalog(list(digest("one"))), nil)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// factory builds images of schematics that were registered, and serves them as a registry does.
type factory struct {
	extensions []schematics.OfficialExtension
	schematics map[string]string // by ID
	salt       string            // changes what the same build's bytes are
	wrongID    string
	announce   func(size int64) int64
	sent       func(iso []byte) []byte
	fail       error

	downloads, registrations int
}

func newFactory() *factory {
	return &factory{
		extensions: list(digest("one")), schematics: map[string]string{},
		announce: func(size int64) int64 { return size },
		sent:     func(iso []byte) []byte { return iso },
	}
}

func (f *factory) Extensions(context.Context, string) ([]schematics.OfficialExtension, error) {
	return f.extensions, f.fail
}

func (f *factory) Knows(_ context.Context, id string) (bool, error) {
	_, ok := f.schematics[id]
	return ok, f.fail
}

func (f *factory) Register(_ context.Context, canonical string) (string, error) {
	f.registrations++
	if f.wrongID != "" {
		return f.wrongID, f.fail
	}
	id := hash([]byte(canonical))
	f.schematics[id] = canonical
	return id, f.fail
}

func (f *factory) bytes(req ISORequest) []byte {
	return bytes.Repeat([]byte(f.salt+fmt.Sprint(req)+f.schematics[req.SchematicID]), 100)
}

func (f *factory) ISO(_ context.Context, req ISORequest) (io.ReadCloser, int64, error) {
	if _, ok := f.schematics[req.SchematicID]; !ok {
		return nil, 0, errors.New("no such schematic")
	}
	f.downloads++
	iso := f.bytes(req)
	return io.NopCloser(bytes.NewReader(f.sent(iso))), f.announce(int64(len(iso))), f.fail
}

func (f *factory) InstallerRepository(req ISORequest) string {
	return "factory.example/" + req.Platform + "-installer/" + req.SchematicID
}

func (f *factory) ISOURL(req ISORequest) string {
	return "https://factory.example/iso/" + req.SchematicID
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
	factory *factory
	store   *store
	cache   *Cache
	saved   schematics.Lock
	saves   int
	saveErr error
	ledger  *Ledger
	pub     Publisher
	events  []string
	titles  []string // of the steps that were begun
	notes   []string
}

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{factory: newFactory(), store: newStore(), cache: NewCache(t.TempDir() + "/iso")}
	b.again(lockOf(t))
	return b
}

// again is what a new process finds: only files and servers are as they were.
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
		Store: b.store, Factory: b.factory, Delivery: Auto, Cache: b.cache, Ledger: b.ledger, Storages: []string{"cephfs", "local"},
		Hosts: map[string][]string{"default": {"pve1", "pve2"}},
		Note:  b.note,
	}
	b.factory.downloads, b.factory.registrations, b.store.changes = 0, 0, nil
	b.notes = nil
}

// iso is the one that is published.
func (b *bench) iso() schematics.ISO { return b.saved.Schematics["default"].ISO }

func (b *bench) note(path, text string) { b.notes = append(b.notes, path+": "+text) }

func (b *bench) builder() Builder {
	return Builder{Factory: b.factory, Registry: b.factory, Cache: b.cache, Ledger: b.ledger, Note: b.note}
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

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func sizeText(b *bench) string { return strconv.FormatInt(b.iso().SizeBytes, 10) }
