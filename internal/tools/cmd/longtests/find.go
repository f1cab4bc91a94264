package main

import (
	"fmt"
	"go/ast"
	"go/types"
	"slices"
	"strings"

	"golang.org/x/tools/go/packages"
)

// test is one of which -short leaves something out.
type test struct {
	pkg, name string
	by        []string // what it uses, and what that uses, and so on to testing.Short
}

// short is what every test is found by.
const short = "testing.Short"

// find looks for them in packages, which are named as for go test.
func find(patterns ...string) ([]test, error) {
	loaded, err := packages.Load(&packages.Config{Mode: packages.LoadSyntax, Tests: true}, patterns...)
	if err != nil {
		return nil, fmt.Errorf("load packages: %w", err)
	}
	u := uses{}
	for _, p := range loaded {
		for _, err := range p.Errors {
			return nil, err
		}
		for _, file := range p.Syntax {
			for _, d := range file.Decls {
				u.add(p.TypesInfo, d)
			}
		}
	}
	return u.long(), nil
}

// uses are the functions and variables of packages, each with those it uses.
type uses map[string]map[string]bool

// add adds what a declaration declares. A variable uses what its value does.
func (u uses) add(info *types.Info, d ast.Decl) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		u.declare(info, d.Name, d)
	case *ast.GenDecl:
		for _, s := range d.Specs {
			if v, ok := s.(*ast.ValueSpec); ok {
				for _, name := range v.Names {
					u.declare(info, name, v)
				}
			}
		}
	}
}

func (u uses) declare(info *types.Info, name *ast.Ident, d ast.Node) {
	declared := key(info.Defs[name])
	if fn, ok := info.Defs[name].(*types.Func); ok && fn.Signature().Recv() != nil {
		u.use("."+name.Name, declared)
	}
	ast.Inspect(d, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok && info.Uses[id] != nil {
			u.use(declared, key(info.Uses[id]))
		}
		return true
	})
}

func (u uses) use(by, used string) {
	if by == "" || used == "" {
		return
	}
	if u[by] == nil {
		u[by] = map[string]bool{}
	}
	u[by][used] = true
}

// key names a function, a method or a variable of a package. A method of an interface
// stands for all that have its name.
func key(o types.Object) string {
	fn, ok := o.(*types.Func)
	switch {
	case !ok && (o.Pkg() == nil || o.Parent() != o.Pkg().Scope()):
		return "" // of the language, a field, or of a function alone
	case !ok:
		return o.Pkg().Path() + "." + o.Name()
	case fn.Signature().Recv() != nil && types.IsInterface(fn.Signature().Recv().Type()):
		return "." + fn.Name()
	}
	return fn.Origin().FullName()
}

// long are the tests that use testing.Short, by whatever way.
func (u uses) long() (tests []test) {
	by := map[string]string{} // what a name uses that leads there
	for todo := []string{short}; len(todo) > 0; todo = todo[1:] {
		for name, used := range u {
			if _, known := by[name]; !known && used[todo[0]] {
				by[name] = todo[0]
				todo = append(todo, name)
			}
		}
	}
	for name := range by {
		t := test{pkg: strings.TrimSuffix(name[:strings.LastIndex(name, ".")], "_test"), name: name[strings.LastIndex(name, ".")+1:]}
		if strings.ContainsAny(name, "()") || !runs(t.name) {
			continue
		}
		for at := by[name]; at != ""; at = by[at] {
			t.by = append(t.by, at)
		}
		tests = append(tests, t)
	}
	slices.SortFunc(tests, func(a, b test) int { return strings.Compare(a.pkg+" "+a.name, b.pkg+" "+b.name) })
	return tests
}

// runs says whether go test -run has a function of this name.
func runs(name string) bool {
	return strings.HasPrefix(name, "Test") && name != "TestMain" || strings.HasPrefix(name, "Fuzz") || strings.HasPrefix(name, "Example")
}
