// Command chart packages a Helm chart for a release, as helm package does: links are
// replaced by what they lead to, and both versions of Chart.yaml are those of the release.
//
//	chart -version v1.2.3 -date 2026-01-02T03:04:05Z -output DIR deploy/chart/recast-operator
//
// It writes DIR/recast-operator-1.2.3.tgz, which is the same for the same files.
package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"flag"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

func main() { os.Exit(run(os.Args[1:], os.Stderr)) }

func run(args []string, stderr io.Writer) int {
	flags := flag.NewFlagSet("chart", flag.ContinueOnError)
	flags.SetOutput(stderr)
	version := flags.String("version", "", "of the release: v1.2.3")
	date := flags.String("date", "", "of the release, as in RFC 3339")
	output := flags.String("output", "", "`directory` to write to")
	if err := flags.Parse(args); err != nil {
		return 3
	}
	when, err := time.Parse(time.RFC3339, *date)
	if flags.NArg() != 1 || *output == "" || !strings.HasPrefix(*version, "v") || err != nil {
		fmt.Fprintln(stderr, "usage: chart -version vVERSION -date DATE -output DIR CHART")
		return 3
	}
	if err := write(*output, filepath.Clean(flags.Arg(0)), *version, when); err != nil {
		fmt.Fprintf(stderr, "chart: %v\n", err)
		return 1
	}
	return 0
}

func write(output, dir, version string, date time.Time) error {
	ignored, err := os.ReadFile(filepath.Join(dir, ".helmignore"))
	if err != nil {
		return err
	}
	files, err := read(dir, strings.Fields(string(ignored)))
	if err != nil {
		return err
	}
	name := filepath.Base(dir)
	const about = "Chart.yaml"
	if files[about], err = released(files[about], version); err != nil {
		return fmt.Errorf("%s: %w", filepath.Join(dir, about), err)
	}
	archive, err := pack(name, files, date)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(output, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(output, name+"-"+version[1:]+".tgz"), archive, 0o644)
}

// read returns the files below a directory by their names relative to it; it follows links.
func read(dir string, ignored []string) (map[string][]byte, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{}
	for _, e := range entries {
		at := filepath.Join(dir, e.Name())
		info, err := os.Stat(at)
		switch {
		case err != nil:
			return nil, err
		case slices.Contains(ignored, e.Name()) || e.Name() == ".helmignore":
		case info.IsDir():
			below, err := read(at, ignored)
			if err != nil {
				return nil, err
			}
			for name, text := range below {
				files[path.Join(e.Name(), name)] = text
			}
		default:
			if files[e.Name()], err = os.ReadFile(at); err != nil {
				return nil, err
			}
		}
	}
	return files, nil
}

// released sets the versions of a Chart.yaml.
func released(text []byte, version string) ([]byte, error) {
	for key, value := range map[string]string{"version": version[1:], "appVersion": version} {
		line := regexp.MustCompile(`(?m)^` + key + `: .*$`)
		if len(line.FindAll(text, -1)) != 1 {
			return nil, fmt.Errorf("no line %q, or two", key+":")
		}
		text = line.ReplaceAll(text, []byte(key+": "+value))
	}
	return text, nil
}

// pack makes the archive, sorted by name.
func pack(name string, files map[string][]byte, date time.Time) ([]byte, error) {
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	t := tar.NewWriter(z)
	names := make([]string, 0, len(files))
	for name := range files {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, file := range names {
		h := &tar.Header{Name: path.Join(name, file), Mode: 0o644, Size: int64(len(files[file])), ModTime: date, Uname: "root", Gname: "root"}
		if err := t.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := t.Write(files[file]); err != nil {
			return nil, err
		}
	}
	if err := t.Close(); err != nil {
		return nil, err
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}
