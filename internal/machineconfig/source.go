// Package machineconfig reads machine configurations from where the user keeps them: from the files of a directory or
// from the output of a program. It can also make configurations from secrets and patches, as talosctl gen config
// does. It decrypts what SOPS or age encrypted. Its type is [Source].
package machineconfig

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/siderolabs/talos/pkg/machinery/config/configpatcher"
	"github.com/siderolabs/talos/pkg/machinery/config/generate"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
)

// Options say where configurations are. One of Dir, Command and Render is set.
type Options struct {
	Place   string                   // of the setting, for messages: "recast.yaml:6:3: talos.machineConfigs"
	File    func(node string) string // path of a node's file within the directory
	Dir     string                   // of the files
	Command []string                 // program that writes the files to the directory "{out}", and its arguments
	Render  *Render
	Base    string            // working directory of programs
	Env     []string          // this process's environment
	Pass    []string          // names of further variables for programs
	Note    func(line string) // receives the name of a program that takes longer than a second; may be nil
}

// Source reads configurations. It may be used by several goroutines.
type Source struct {
	o Options

	mu      sync.Mutex
	input   *generate.Input                // from which configurations are rendered
	patches map[string]configpatcher.Patch // by path
	written map[string][]byte              // by the program, by path
	failed  error                          // of the program
}

// New returns a Source. It fails if the directory can't be read.
func New(o Options) (*Source, error) {
	s := &Source{o: o}
	if o.Command != nil || o.Render != nil {
		return s, nil
	}
	return s, s.checkDir()
}

// checkDir distinguishes a missing file of a node from a missing directory: it returns an error if the directory
// can't be read.
func (s *Source) checkDir() error {
	if _, err := os.ReadDir(s.o.Dir); err != nil {
		return fault.MachineConfig.Configf("%s: %w", s.o.Place, err)
	}
	return nil
}

// Config returns the configuration of a node, decrypted; false if there is none. Each call reads a file again; a
// program runs once.
func (s *Source) Config(ctx context.Context, node string) (text cluster.Secret, found bool, err error) {
	if s.o.Render != nil {
		text, err = s.rendered(ctx, node)
		return text, err == nil, err
	}
	read := s.file
	if s.o.Command != nil {
		read = s.output
	}
	file, err := read(ctx, s.o.File(node))
	if err != nil {
		return nil, false, fmt.Errorf("machine configuration of %s: %w", node, err)
	}
	if file == nil {
		return nil, false, nil
	}
	text, err = s.decrypted(ctx, *file)
	return text, err == nil, err
}

// file is a node's configuration as the user keeps it.
type file struct {
	text []byte
	name string // in messages
}

// file returns a file of the directory; nil if there is none.
func (s *Source) file(_ context.Context, name string) (*file, error) {
	path := filepath.Join(s.o.Dir, name)
	text, err := os.ReadFile(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return &file{text, path}, err
	}
	if _, there := os.Lstat(path); there == nil {
		return nil, err // a link that leads nowhere
	}
	return nil, s.checkDir()
}

// output returns a file that the program has written; nil if the program has written none for the node.
func (s *Source) output(ctx context.Context, name string) (*file, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.written == nil && s.failed == nil {
		written, err := s.run(ctx)
		if ctx.Err() != nil {
			return nil, err // the next caller may have more time
		}
		s.written, s.failed = written, err
	}
	text, ok := s.written[filepath.Clean(name)]
	if s.failed != nil || !ok {
		return nil, s.failed
	}
	return &file{text, name + " of " + s.o.Command[0]}, nil
}
