package images

import (
	"bytes"
	"errors"
	"maps"
	"strings"
	"testing"

	"github.com/recast-sh/recast/internal/fault"
)

// served lets hosts download what the factory builds.
func served(t *testing.T) *bench {
	t.Helper()
	b := built(t)
	b.store.mayNot = ""
	lock := b.saved
	req := RequestOf(lock, lock.Schematics["default"])
	b.store.urls[b.factory.ISOURL(req)] = b.factory.bytes(req)
	b.pub.Storages = []string{"cephfs"}
	return b
}

func (b *bench) link() string {
	return b.factory.ISOURL(RequestOf(b.saved, b.saved.Schematics["default"]))
}

// served is what hosts download from the factory, other is something else of that size.
func (b *bench) served() []byte { return b.store.urls[b.link()] }
func (b *bench) other() []byte  { return bytes.Repeat([]byte("x"), len(b.served())) }

// put puts a file of the ISO's name on the storage.
func (b *bench) put(data []byte) { b.store.storages["pve1/cephfs"].isos[b.iso().Name] = data }

// delivery is one way of an ISO to the storage cephfs.
type delivery struct {
	prepare func(*bench)
	want    []string // changes on the storage, without the ISO's name
	title   string   // of the step that did it
	note    string   // part of one
	fails   string   // part of the error
	kind    fault.Kind
}

func deliveries() map[string]delivery {
	return map[string]delivery{
		"the host downloads it": {
			want: []string{"download pve1/cephfs"}, title: "download ISO to storage cephfs (pve1 fetches it from factory.example)",
		},
		"download-url": {
			prepare: func(b *bench) { b.pub.Delivery = DownloadURL },
			want:    []string{"download pve1/cephfs"}, title: "download ISO to storage cephfs (pve1 fetches it from factory.example)",
		},
		"the imager built it": {
			prepare: func(b *bench) { b.pub.ByImager = func(schematic string) bool { return schematic == "default" } },
			want:    []string{"upload pve1/cephfs"}, title: "upload ISO to storage cephfs (the imager has built it, so no Image Factory has it)",
		},
		"the imager built another": {
			prepare: func(b *bench) { b.pub.ByImager = func(schematic string) bool { return schematic == "plain" } },
			want:    []string{"download pve1/cephfs"}, title: "download ISO to storage cephfs (pve1 fetches it from factory.example)",
		},
		"download-url of what the imager built": {
			prepare: func(b *bench) {
				b.pub.Delivery, b.pub.ByImager = DownloadURL, func(string) bool { return true }
			}, fails: "can't get to storage cephfs by download-url: the imager has built it", kind: fault.Refused,
		},
		"download-url needs no cache": {
			prepare: func(b *bench) {
				b.pub.Delivery, b.cache = DownloadURL, NewCache(b.cache.dir+"2")
				b.pub.Cache = b.cache
			},
			want: []string{"download pve1/cephfs"},
		},
		"upload asks for no reason": {
			prepare: func(b *bench) { b.pub.Delivery = ByUpload },
			want:    []string{"upload pve1/cephfs"}, title: "upload ISO to storage cephfs",
		},
		"no privilege": {
			prepare: func(b *bench) { b.store.mayNot = "the token has no Sys.AccessNetwork on /nodes/pve1" },
			want:    []string{"upload pve1/cephfs"}, title: "upload ISO to storage cephfs (the token has no Sys.AccessNetwork on /nodes/pve1)",
		},
		"no way to the factory": {
			prepare: func(b *bench) { b.store.urls = nil },
			want:    []string{"upload pve1/cephfs"}, title: "upload ISO to storage cephfs (pve1 cannot fetch LINK: 500 can't connect)",
		},
		"no way to the factory, download-url": {
			prepare: func(b *bench) { b.store.urls, b.pub.Delivery = nil, DownloadURL },
			fails:   "ISO can't get to storage cephfs by download-url: pve1 cannot fetch LINK: 500 can't connect", kind: fault.Refused,
		},
		"the factory has another size": {
			prepare: func(b *bench) { b.store.urls[b.link()] = []byte("page") },
			want:    []string{"upload pve1/cephfs"}, title: "upload ISO to storage cephfs (pve1 reports that LINK has 4 bytes, but the lock has SIZE)",
		},
		"the download fails": {
			prepare: func(b *bench) {
				b.store.breakDown = func(Download, []byte) error { return errors.New("wget: exit code 4") }
			},
			want: []string{"download pve1/cephfs", "upload pve1/cephfs"}, note: "download to storage cephfs: wget: exit code 4; uploading it",
		},
		"nothing may be changed now": {prepare: func(b *bench) { b.store.held = true }, fails: "download to storage cephfs: nothing was sent"},
		"the factory sends other bytes": {
			prepare: func(b *bench) { b.store.urls[b.link()] = b.other() },
			want:    []string{"download pve1/cephfs", "upload pve1/cephfs"}, note: "it has another checksum; uploading it",
		},
		"a file that is used comes while the download fails": {
			prepare: func(b *bench) {
				b.store.breakDown = func(Download, []byte) error {
					b.put([]byte("half"))
					b.store.uses = []Use{{By: "VM 9", Values: []string{"cephfs:iso/" + b.iso().Name}}}
					return errors.New("wget: exit code 4")
				}
			}, want: []string{"download pve1/cephfs"}, fails: "is in use by VM 9: it is not overwritten", kind: fault.Refused,
		},
		"the download fails, download-url": {
			prepare: func(b *bench) {
				b.pub.Delivery = DownloadURL
				b.store.breakDown = func(Download, []byte) error { return errors.New("wget: exit code 4") }
			},
			want: []string{"download pve1/cephfs"}, fails: "download to storage cephfs: wget: exit code 4",
		},
	}
}

// onto are deliveries to where a file of the ISO's name exists.
func onto() map[string]delivery {
	return map[string]delivery{
		"the same file is there": {
			prepare: func(b *bench) { b.put(b.served()) },
			want:    []string{"compare pve1/cephfs"}, title: "compare the checksum of ISO on storage cephfs",
		},
		"the same file is there, and nothing may be changed now": {
			prepare: func(b *bench) { b.put(b.served()); b.store.held = true }, fails: "nothing was sent",
		},
		"the same file is there, upload": {
			prepare: func(b *bench) { b.put(b.served()); b.pub.Delivery = ByUpload },
		},
		"another file of the same size": {
			prepare: func(b *bench) { b.put(b.other()) },
			want:    []string{"compare pve1/cephfs", "upload pve1/cephfs"}, note: "it has other bytes than the lock, and nothing uses it: it is replaced",
		},
		"another file of the same size, in use": {
			prepare: func(b *bench) {
				b.put(b.other())
				b.store.uses = []Use{{By: "snapshot s1 of VM 9", Values: []string{"cephfs:iso/" + b.iso().Name}}}
			},
			want: []string{"compare pve1/cephfs"}, fails: "is in use by snapshot s1 of VM 9: it is not overwritten", kind: fault.Refused,
		},
		"another file of the same size, download-url": {
			prepare: func(b *bench) { b.put(b.other()); b.pub.Delivery = DownloadURL },
			want:    []string{"compare pve1/cephfs"}, fails: "it has another checksum", kind: fault.Refused,
		},
		"half a file": {
			prepare: func(b *bench) { b.put([]byte("half")) },
			want:    []string{"upload pve1/cephfs"},
			title:   "upload ISO to storage cephfs, over a file of another size if nothing uses that (download-url never replaces a file)",
		},
	}
}

func TestDelivery(t *testing.T) {
	t.Parallel()
	all := deliveries()
	maps.Copy(all, onto())
	each(t, all, func(t *testing.T, tc delivery) {
		b := served(t)
		data := b.store.urls[b.link()]
		if tc.prepare != nil {
			tc.prepare(b)
		}
		err := b.run(t, b.pub.Step())
		plain := strings.NewReplacer(b.iso().Name, "ISO", b.link(), "LINK", sizeText(b), "SIZE")
		if got := plain.Replace(message(err)); err != nil != (tc.fails != "") || !strings.Contains(got, tc.fails) || fault.KindOf(err) != tc.kind {
			t.Errorf("error is %s (%v), want %q in it", got, fault.KindOf(err), tc.fails)
		}
		var changes []string
		for _, c := range b.store.changes {
			changes = append(changes, strings.TrimSuffix(c, " "+b.iso().Name))
		}
		same(t, "changes", tc.want, changes)
		if titles := plain.Replace(strings.Join(b.titles, "\n") + "\n"); tc.title != "" && !strings.Contains(titles, tc.title+"\n") {
			t.Errorf("steps\n%swant %s", titles, tc.title)
		}
		if notes := plain.Replace(strings.Join(b.notes, "\n")); !strings.Contains(notes, tc.note) {
			t.Errorf("notes\n%s\nwant %s", notes, tc.note)
		}
		if err == nil && !bytes.Equal(b.store.storages["pve1/cephfs"].isos[b.iso().Name], data) {
			t.Error("the ISO on the storage is not the lock's")
		}
	})
}

// TestVerifiedOnce: a run does not compare twice.
func TestVerifiedOnce(t *testing.T) {
	t.Parallel()
	b := served(t)
	b.store.storages["pve1/cephfs"].isos[b.iso().Name] = b.store.urls[b.link()]
	root := b.pub.Step()
	for range 2 {
		noError(t, b.run(t, root))
	}
	same(t, "changes", []string{"compare pve1/cephfs " + b.iso().Name}, b.store.changes)
	want := []string{"publish/default skipped " + b.iso().Name + " is on storage cephfs", "publish done"}
	same(t, "second time", want, b.events)
}
