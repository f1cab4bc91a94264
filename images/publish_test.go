package images

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/words"
	"github.com/recast-sh/recast/schematics"
)

func built(t *testing.T) *bench {
	t.Helper()
	b := newBench(t)
	must.Do(t, b.run(t, b.builder().Step()))
	b.again(b.saved)
	return b
}

func TestPublish(t *testing.T) {
	t.Parallel()
	b := built(t)
	must.Do(t, b.run(t, b.pub.Step()))
	name := b.saved.Schematics["default"].ISO.Name
	want := []string{"upload pve1/cephfs " + name, "upload pve1/local " + name, "upload pve2/local " + name}
	must.Equal(t, "changes", want, b.store.changes)
	all := words.Size(b.saved.Schematics["default"].ISO.SizeBytes)
	if diff := cmp.Diff([]string{
		"publish/default/upload-cephfs: " + all + " of " + all,
		"publish/default/upload-local-pve1: " + all + " of " + all,
		"publish/default/upload-local-pve2: " + all + " of " + all,
	}, b.notes); diff != "" {
		t.Errorf("notes (-want +got):\n%s", diff)
	}

	b.again(b.saved)
	must.Do(t, b.run(t, b.pub.Step()))
	where := "storage cephfs, storage local on pve1, storage local on pve2"
	must.Equal(t, "second time", []string{"publish/default skipped " + name + " is on " + where, "publish done"}, b.events)

	delete(b.store.storages["pve2/local"].isos, name)
	must.Do(t, b.run(t, b.pub.Step()))
	must.Equal(t, "uploads after a loss", []string{"upload pve2/local " + name}, b.store.changes)
}

// TestPublishOwn: where Proxmox compares nothing, only an upload counts that the lock records and that nobody has changed since.
func TestPublishOwn(t *testing.T) {
	t.Parallel()
	b := built(t)
	own := func(t *testing.T) (names []string) {
		t.Helper()
		b.again(b.saved)
		b.pub.Verify = VerifyOwn
		must.Do(t, b.run(t, b.pub.Step()))
		for _, c := range b.store.changes {
			_, name, _ := strings.Cut(strings.TrimPrefix(c, "upload "), " ")
			must.Hold(t, ourISO.MatchString(name) && name != b.iso().Name && (schematics.Upload{Name: name}).Of() == b.iso().Name, "%s has no random part", c)
			names = append(names, name)
		}
		return slices.Compact(slices.Sorted(slices.Values(names)))
	}
	padded := bytes.Repeat([]byte("x"), int(b.iso().SizeBytes))
	b.store.put("pve1/cephfs", b.iso().Name, padded)
	names := own(t)
	must.Equal(t, "new names", 3, len(names))
	must.Hold(t, bytes.Equal(padded, b.store.storages["pve1/cephfs"].isos[b.iso().Name]), "their file is overwritten")
	must.Equal(t, "uploads the second time", 0, len(own(t)))

	record := b.saved.Schematics["default"].Uploads
	must.Equal(t, "records", 3, len(record))
	b.store.put(record[1].Host+"/"+record[1].Storage, record[1].Name, padded)
	must.Equal(t, "uploads after one was replaced", 1, len(own(t)))
	now := b.saved.Schematics["default"].Uploads
	must.Equal(t, "records that stay", []schematics.Upload{record[0], record[2]}, now[:2])
	must.Hold(t, now[2].Host == record[1].Host && now[2].Name != record[1].Name, "%+v is recorded after %+v", now, record)

	before := b.saved
	b.store.put("pve1/cephfs", now[0].Name, padded)
	b.again(b.saved)
	b.pub.Verify, b.saveErr = VerifyOwn, errors.New("killed")
	must.FailIs(t, b.run(t, b.pub.Step()), b.saveErr)
	must.Equal(t, "what is recorded", before, b.saved)
	b.saveErr = nil
	must.Equal(t, "uploads by the next run", 1, len(own(t)))

	e := b.saved.Schematics["default"]
	e.Uploads = nil
	b.saved.Schematics["default"] = e
	must.Equal(t, "uploads without the record", 3, len(own(t)))

	b.store.mayOn = "pve1"
	delete(b.store.storages["pve1/local"].isos, b.saved.Schematics["default"].Uploads[1].Name)
	b.store.urls[b.link()] = b.factory.bytes(BootISO, RequestOf(b.saved, e))
	b.again(b.saved)
	must.Do(t, b.run(t, b.pub.Step()))
	must.Hold(t, len(b.store.changes) == 2 && strings.HasPrefix(b.store.changes[0], "compare pve1/cephfs ") && strings.HasPrefix(b.store.changes[1], "download pve1/local ") &&
		!strings.HasSuffix(b.store.changes[1], b.iso().Name), "one host may compare: %q", b.store.changes)
	b.store.mayOn = ""

	b.store.mayNot = ""
	b.again(b.saved)
	b.pub.Verify = VerifyRequire
	must.Do(t, b.run(t, b.pub.Step()))
	must.Equal(t, "compared", 3, len(b.store.changes))
	for _, c := range b.store.changes {
		must.Hold(t, strings.HasPrefix(c, "compare "), "%s", c)
	}
	b.store.mayNot = "the token has nothing"
	b.again(b.saved)
	b.pub.Verify = VerifyRequire
	err := b.run(t, b.pub.Step())
	must.Equal(t, "kind", fault.Refused, fault.KindOf(err))
	must.Hold(t, strings.Contains(must.Text(err), b.iso().Name+" can't be compared with the lock on storage cephfs: the token has nothing, and proxmox.publish.verify is require") &&
		strings.Contains(strings.Join(fault.Hints(err), "\n"), "pveum acl modify /nodes/pve1 ") && len(b.store.changes) == 0, "%v, hints %q, changes %q", err, fault.Hints(err), b.store.changes)
}

// unpublishable is a way in which publishing goes wrong.
type unpublishable struct {
	spoil func(*bench)
	kind  fault.Kind
	want  string
	hint  string
}

func unpublishables() map[string]unpublishable {
	return map[string]unpublishable{
		"not built": {
			func(b *bench) {
				lock := b.saved.Clone()
				e := lock.Schematics["default"]
				e.ISO.SHA256, e.ISO.SizeBytes = "", 0
				lock.Schematics["default"] = e
				b.again(lock)
			}, fault.Config, `schematic "default" is not built yet`, "run `recast publish --only build`",
		},
		"not in the cache": {
			func(b *bench) { b.cache = NewCache(b.cache.dir + "2"); b.again(b.saved) },
			fault.Config, "is not in the cache as the lock has it", "run `recast publish --only build`",
		},
		"changed in the cache": {
			func(b *bench) {
				if err := os.WriteFile(b.cache.path(b.saved.Schematics["default"].ISO.Name), []byte("rot"), 0o600); err != nil {
					panic(err)
				}
			}, fault.Config, "is not in the cache as the lock has it", "run `recast publish --only build`",
		},
		"unknown storage": {
			func(b *bench) { b.pub.Storages = []string{"cefs"} }, fault.Config,
			`storage "cefs" is unknown: there is none of that name on pve1, pve2`, "`pvesm status --content iso` lists what images.iso.storage can name",
		},
		"all that is wrong with storages": {
			func(b *bench) { b.pub.Storages = []string{"fast", "cefs"} }, fault.Config,
			"storage \"fast\" does not take ISOs: its content is [\"images\"]\nstorage \"cefs\" is unknown: there is none of that name on pve1, pve2",
			"allow the content type with `pvesm set fast --content …,iso`, or name another storage in images.iso.storage; " +
				"`pvesm status --content iso` lists what images.iso.storage can name",
		},
		"a host without any": {
			func(b *bench) {
				b.pub.Storages = []string{"local"}
				delete(b.store.storages, "pve2/local")
			}, fault.Config, `no storage for ISOs on host pve2: it has none of ["local"]`, "name a storage of that host in images.iso.storage",
		},
		"inactive": {
			func(b *bench) { b.store.storages["pve1/cephfs"].Active = false }, fault.Failed,
			`storage "cephfs" is not active on pve1`, "see `pvesm status --storage cephfs` on pve1",
		},
		"too little space": {
			func(b *bench) { b.store.storages["pve2/local"].FreeBytes = 10 }, fault.Refused,
			"publish/default/check-storages: too little space on storage local on pve2: ",
			"recast prune removes ISOs of ours that nothing uses; or name another storage in images.iso.storage",
		},
		"another file of that name, in use": {
			func(b *bench) {
				b.store.storages["pve1/local"].isos[b.iso().Name] = []byte("half")
				b.store.uses = []Use{
					{By: `VM 7 "x" on pve2`, Values: []string{"isos:iso/other.iso,media=cdrom"}},
					{By: `VM 101 "wk1" on pve1`, Values: []string{"2048", "local:iso/" + b.iso().Name + ",media=cdrom,size=4"}},
				}
			}, fault.Refused, `ISO on storage local on pve1 has other content than the lock has, and is in use by VM 101 "wk1" on pve1: it is not overwritten`,
			"an interrupted upload leaves such a file. It is replaced once no drive and no snapshot names it: qm config VMID and qm listsnapshot VMID show what those VMs have, and qm set VMID --ide2 none,media=cdrom ejects it",
		},
		"another file of that name, its use unknown": {
			func(b *bench) {
				b.store.storages["pve1/local"].isos[b.iso().Name] = []byte("half")
				b.store.blind = fault.Refusedf("the token sees half")
			}, fault.Refused, "ISO is on storage local on pve1 with other content than the lock has, and may only be replaced if nothing uses it: the token sees half", "",
		},
		"download-url without the privilege": {
			func(b *bench) { b.pub.Delivery = DownloadURL }, fault.Refused,
			"ISO can't get to storage cephfs by download-url: the token has nothing", "images.iso.delivery: auto uploads it in such a case",
		},
		"unreadable storage": {
			func(b *bench) { b.store.fail = errors.New("500") }, fault.Failed, `look at storage "cephfs" on pve1: 500`, "",
		},
	}
}

func TestPublishRefuses(t *testing.T) {
	t.Parallel()
	must.Each(t, unpublishables(), func(t *testing.T, tc unpublishable) {
		b := built(t)
		tc.spoil(b)
		err := b.run(t, b.pub.Step())
		must.Be(t, err != nil, "no error")
		must.Hold(t, strings.Contains(strings.ReplaceAll(err.Error(), b.iso().Name, "ISO"), tc.want),
			"error\n got %v\nwant it to hold %q", err, tc.want)
		must.Equal(t, "kind", tc.kind, fault.KindOf(err))
		hint := strings.ReplaceAll(tc.hint, "ISO`", b.saved.Schematics["default"].ISO.Name+"`")
		must.Equal(t, "hint", hint, strings.Join(fault.Hints(err), "; "))
		must.Hold(t, b.store.changes == nil, "uploaded despite the error: %v", b.store.changes)
	})
}

func TestProgress(t *testing.T) {
	t.Parallel()
	type row struct {
		total int64
		pause time.Duration // before each count
		done  []int64
		want  []string
	}
	must.Each(t, map[string]row{
		"known":   {100 * mib, 0, []int64{1, 9 * mib, 10 * mib, 11 * mib, 35 * mib, 100 * mib}, []string{"10 MiB of 100 MiB", "35 MiB of 100 MiB", "100 MiB of 100 MiB"}},
		"unknown": {-1, 0, []int64{1, 64 * mib, 65 * mib, 130 * mib}, []string{"64 MiB", "130 MiB"}},
		"tiny":    {3, 0, []int64{3}, []string{"1 KiB of 1 KiB"}},
		"a long one": {
			100 * mib, 4 * time.Second,
			[]int64{10 * mib, 40 * mib, 100 * mib},
			[]string{"10 MiB of 100 MiB", "40 MiB of 100 MiB, 5 MiB/s", "100 MiB of 100 MiB, 8 MiB/s"},
		},
		"sent again": {
			100 * mib, 4 * time.Second,
			[]int64{50 * mib, 1, 50 * mib},
			[]string{"50 MiB of 100 MiB", "beginning again", "50 MiB of 100 MiB"},
		},
	}, func(t *testing.T, tc row) {
		synctest.Test(t, func(t *testing.T) {
			var got []string
			tell := progress(tc.total, func(text string) { got = append(got, text) })
			for _, n := range tc.done {
				time.Sleep(tc.pause)
				tell(n)
			}
			must.Equal(t, "notes", tc.want, got)
		})
	})
}

// served lets hosts download what the factory builds.
func served(t *testing.T) *bench {
	t.Helper()
	b := built(t)
	b.store.mayNot = ""
	lock := b.saved
	req := RequestOf(lock, lock.Schematics["default"])
	b.store.urls[b.factory.ImageURL(BootISO, req)] = b.factory.bytes(BootISO, req)
	b.pub.Storages = []string{"cephfs"}
	return b
}

func (b *bench) link() string {
	return b.factory.ImageURL(BootISO, RequestOf(b.saved, b.saved.Schematics["default"]))
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
	must.Each(t, all, func(t *testing.T, tc delivery) {
		b := served(t)
		data := b.store.urls[b.link()]
		if tc.prepare != nil {
			tc.prepare(b)
		}
		err := b.run(t, b.pub.Step())
		plain := strings.NewReplacer(b.iso().Name, "ISO", b.link(), "LINK", sizeText(b), "SIZE")
		if got := plain.Replace(must.Text(err)); err != nil != (tc.fails != "") || !strings.Contains(got, tc.fails) || fault.KindOf(err) != tc.kind {
			t.Errorf("error is %s (%v), want %q in it", got, fault.KindOf(err), tc.fails)
		}
		var changes []string
		for _, c := range b.store.changes {
			changes = append(changes, strings.TrimSuffix(c, " "+b.iso().Name))
		}
		must.Equal(t, "changes", tc.want, changes)
		titles := plain.Replace(strings.Join(b.titles, "\n") + "\n")
		must.Hold(t, tc.title == "" || strings.Contains(titles, tc.title+"\n"), "steps\n%swant %s", titles, tc.title)
		must.Contain(t, "notes", plain.Replace(strings.Join(b.notes, "\n")), tc.note)
		must.Hold(t, err != nil || bytes.Equal(b.store.storages["pve1/cephfs"].isos[b.iso().Name], data),
			"the ISO on the storage is not the lock's")
	})
}

// TestVerifiedOnce: a run does not compare twice.
func TestVerifiedOnce(t *testing.T) {
	t.Parallel()
	b := served(t)
	b.store.storages["pve1/cephfs"].isos[b.iso().Name] = b.store.urls[b.link()]
	root := b.pub.Step()
	for range 2 {
		must.Do(t, b.run(t, root))
	}
	must.Equal(t, "changes", []string{"compare pve1/cephfs " + b.iso().Name}, b.store.changes)
	want := []string{"publish/default skipped " + b.iso().Name + " is on storage cephfs", "publish done"}
	must.Equal(t, "second time", want, b.events)
}

func isoOf(build string) string { return "recast-v1.13.9-" + build + "-nocloud-amd64.iso" }

const (
	buildA = "aaaaaaaaaaaa"
	buildB = "bbbbbbbbbbbb"
	week   = 168 * time.Hour
)

func TestJudgeISOs(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 31, 0, 0, 0, 0, time.UTC)
	old := now.Add(-week)
	a := StoredISO{Host: "pve1", Storage: "local", Name: isoOf(buildA), Changed: old}
	type row struct {
		iso  StoredISO
		uses []Use
		need Needed
		age  time.Duration
		want []string
	}
	must.Each(t, map[string]row{
		"nothing needs it": {iso: a, age: week},
		"a VM": {iso: a, uses: []Use{
			{By: "VM 1", Values: []string{"local:iso/" + isoOf(buildB)}}, {By: "VM 2", Values: []string{"none,media=cdrom", "local:iso/" + isoOf(buildA) + ",media=cdrom"}},
		}, want: []string{"VM 2 refers to it"}},
		"on another storage, which may be the same directory": {
			iso: a, uses: []Use{{By: "VM 1", Values: []string{"nas:iso/" + isoOf(buildA)}}}, want: []string{"VM 1 refers to it"},
		},
		"by its path": {
			iso: a, uses: []Use{{By: "VM 1", Values: []string{"-cdrom /var/lib/vz/template/iso/" + isoOf(buildA)}}}, want: []string{"VM 1 refers to it"},
		},
		"the lock":      {iso: a, need: Needed{Names: map[string]string{isoOf(buildA): "recast.lock has it"}}, want: []string{"recast.lock has it"}},
		"another build": {iso: a, need: Needed{Builds: map[string]string{buildB + "00": "wk1 was made from it"}}},
		"superseded":    {iso: a, need: Needed{Names: map[string]string{isoOf(buildA): "recast.lock has it", uploadOf(buildA, "1"): "recast.lock has it"}}, want: []string{"recast.lock has it"}},
		"a superseded upload": {iso: StoredISO{Name: uploadOf(buildA, "0"), Changed: old}, need: Needed{
			Names: map[string]string{isoOf(buildA): "recast.lock has it", uploadOf(buildA, "1"): "recast.lock has it"}, Builds: map[string]string{buildA + "00": "x"},
		}},
		"an upload that no lock has": {
			iso: StoredISO{Name: uploadOf(buildA, "0"), Changed: old}, want: []string{"x"},
			need: Needed{Names: map[string]string{isoOf(buildA): "recast.lock has it", uploadOf(buildB, "1"): "recast.lock has it"}, Builds: map[string]string{buildA + "00": "x"}},
		},
		"builds":          {iso: a, need: Needed{Builds: map[string]string{buildA + "01": "y", buildA + "00": "x"}}, want: []string{"x", "y"}},
		"young":           {iso: a, age: week + time.Minute, want: []string{"it is younger than 168h1m"}},
		"of the future":   {iso: StoredISO{Name: isoOf(buildA), Changed: now.Add(time.Hour)}, age: time.Hour, want: []string{"it is younger than 1h"}},
		"of no known age": {iso: StoredISO{Name: isoOf(buildA)}, age: week, want: []string{"its age is unknown (--older-than 0 ignores age)"}},
		"age is no matter": {
			iso: StoredISO{Name: isoOf(buildA)},
		},
		"not ours": {iso: StoredISO{Name: "debian.iso", Changed: old}, age: week, want: []string{"it is not one of ours"}},
	}, func(t *testing.T, tc row) {
		got := JudgeISOs([]StoredISO{tc.iso}, tc.uses, tc.need, tc.age, now)
		must.Equal(t, "result", []Verdict{{StoredISO: tc.iso, Keep: tc.want}}, got)
	})
}

// uploadOf is isoOf, uploaded under a new name.
func uploadOf(build, digit string) string {
	return strings.TrimSuffix(isoOf(build), ".iso") + "-" + strings.Repeat(digit, 16) + ".iso"
}

func TestOurISO(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{
		"recast-v1.13.9-0123456789ab-nocloud-amd64.iso":          true,
		uploadOf("0123456789ab", "9"):                            true,
		"recast-v1.14.0-alpha.1-0123456789ab-metal-arm64.iso":    true,
		"recast-v1.13.9-0123456789ab-nocloud-amd64.iso.img":      false,
		"my-recast-v1.13.9-0123456789ab-nocloud-amd64.iso":       false,
		"recast-v1.13.9-0123456789abcd-nocloud-amd64.iso":        false,
		"recast-v1.13.9-0123456789ab-nocloud-amd64-extra.iso":    false,
		"recast-v1.13-0123456789ab-nocloud-amd64.iso":            false,
		"recast-v1.13.9-0123456789AB-nocloud-amd64.iso":          false,
		"recast-contract-1-0123456789ab-nocloud-amd64.iso":       false,
		"recast-v1.13.9-0123456789ab-nocloud-amd64.iso.tmp_dwnl": false,
	} {
		must.Equal(t, name, want, ourISO.MatchString(name))
	}
	b := newBench(t)
	for name, e := range b.saved.Schematics {
		if m := ourISO.FindStringSubmatch(e.ISO.Name); m == nil || !strings.HasPrefix(e.BuildID, m[1]) {
			t.Errorf("schematic %s: %s is not recognised as ours", name, e.ISO.Name)
		}
	}
}

// shelf has ISOs of two builds on a shared storage, on a local one of pve1, and on one that only pve2 has.
func shelf() *store {
	s := newStore()
	for _, at := range []string{"pve1/cephfs", "pve1/local", "pve2/local"} {
		for _, name := range []string{isoOf(buildA), isoOf(buildB), "debian.iso"} {
			s.storages[at].isos[name] = []byte("iso")
		}
	}
	delete(s.storages["pve1/local"].isos, isoOf(buildB))
	return s
}

func TestListISOs(t *testing.T) {
	t.Parallel()
	s := shelf()
	delete(s.storages, "pve1/local")
	s.storages["pve3/local"] = &storage{StorageInfo: StorageInfo{Content: []string{"iso"}}}
	s.offline = []string{"pve4"}
	got, unseen, err := ListISOs(t.Context(), s, BootISO, []string{"cephfs", "local"})
	must.Do(t, err)
	want := []StoredISO{
		{Host: "pve1", Storage: "cephfs", Shared: true, Name: isoOf(buildA), SizeBytes: 3},
		{Host: "pve1", Storage: "cephfs", Shared: true, Name: isoOf(buildB), SizeBytes: 3},
		{Host: "pve2", Storage: "local", Name: isoOf(buildA), SizeBytes: 3},
		{Host: "pve2", Storage: "local", Name: isoOf(buildB), SizeBytes: 3},
	}
	must.Equal(t, "ISOs", want, got)
	if diff := cmp.Diff([]string{
		"pve4 is offline: its own storages were not checked", "storage local is not active on pve3: it was not checked there",
	}, unseen); diff != "" {
		t.Errorf("unseen (-want +got):\n%s", diff)
	}
	s.fail = errors.New("500")
	if _, _, err := ListISOs(t.Context(), s, BootISO, []string{"cephfs"}); !errors.Is(err, s.fail) {
		t.Errorf("error is %v", err)
	}
}

func TestPruner(t *testing.T) {
	t.Parallel()
	type row struct {
		change func(s *store, guard *error)
		want   []string
		fails  string
		kind   fault.Kind
	}
	must.Each(t, map[string]row{
		"all that can go": {want: []string{"delete " + isoOf(buildA) + " on storage cephfs", "delete " + isoOf(buildA) + " on storage local on pve1"}},
		"one is used by now": {
			change: func(s *store, _ *error) {
				s.uses = []Use{{By: "VM 7", Values: []string{"cephfs:iso/" + isoOf(buildA)}}}
			}, fails: "is in use by VM 7 now: it stays", kind: fault.Refused,
		},
		"use is no longer known": {
			change: func(s *store, _ *error) { s.blind = fault.Refusedf("the token sees half") }, fails: "the token sees half", kind: fault.Refused,
		},
		"the claim is lost": {
			change: func(_ *store, guard *error) { *guard = fault.As(fault.Claimed, errors.New("lost the claim")) }, fails: "lost the claim", kind: fault.Claimed,
		},
		"one is gone": {
			change: func(s *store, _ *error) { delete(s.storages["pve1/cephfs"].isos, isoOf(buildA)) },
			want:   []string{"delete " + isoOf(buildA) + " on storage local on pve1"},
		},
	}, func(t *testing.T, tc row) {
		s := shelf()
		isos, _, err := ListISOs(t.Context(), s, BootISO, []string{"cephfs", "local"})
		must.Do(t, err)
		need := Needed{Builds: map[string]string{buildB: "wk1 was made from it"}}
		p := Pruner{Shelf: s, Verdicts: JudgeISOs(isos, nil, need, 0, time.Now())}
		p.Verdicts = p.Verdicts[:3] // pve2 has the same as pve1
		var guard error
		if tc.change != nil {
			tc.change(s, &guard)
		}
		p.Write = unless(&guard)
		prune(t, p.Steps(), tc.fails, tc.kind)
		must.Equal(t, "changes", tc.want, s.changes)
		for _, v := range p.Verdicts {
			if _, there := s.storages[v.Host+"/"+v.Storage].isos[v.Name]; v.Removed == there {
				t.Errorf("%s: removed is %t", v, v.Removed)
			}
		}
	})
}

// prune runs steps, and requires an error of that kind with that text, or none without a text.
func prune(t *testing.T, steps []step.Step, fails string, kind fault.Kind) {
	t.Helper()
	err := newBench(t).run(t, step.Step{ID: "prune", Title: "remove", Steps: func(context.Context) ([]step.Step, error) { return steps, nil }})
	must.Hold(t, err != nil == (fails != "") && strings.Contains(must.Text(err), fails) && fault.KindOf(err) == kind,
		"error is %v (%v), want %q in it", err, fault.KindOf(err), fails)
}

// unless sends changes while *guard is nil.
func unless(guard *error) Write {
	return func(ctx context.Context, send func(context.Context) error) error {
		if *guard != nil {
			return *guard
		}
		return send(ctx)
	}
}
