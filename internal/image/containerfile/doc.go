// Package containerfile builds images from a subset of the Containerfile
// format (the format is Docker's, docs.docker.com/reference/dockerfile).
//
//	FROM       NAME of this host's store, REGISTRY/REPOSITORY@sha256:DIGEST, or
//	           scratch; one stage, AS NAME is taken and means nothing
//	RUN        shell and exec form, without flags
//	COPY       from the context alone, both forms, without flags
//	ENV, ARG   for the steps that follow; ARG needs a default
//	WORKDIR    for the steps that follow
//	SHELL      for the RUN steps that follow
//	LABEL EXPOSE VOLUME HEALTHCHECK USER ENTRYPOINT CMD STOPSIGNAL
//	           are taken, are not used, and a note says so: the manifest says
//	           what runs, as whom, and with what
//
// Everything else is refused, with all faults of the file at once: here-docs,
// flags, ADD, ONBUILD, tags without a digest, another escape character.
//
// # How it is built
//
// [Parse] reads the file and gives a [Plan] whose steps stand for themselves.
// [Pack] (the operator's process) reads the context and writes plan, base and
// files as one tar. [Build] is the body of the unprivileged process: user 0 of
// a user namespace whose ids own nothing outside. It unpacks the base by the
// importer's rules, and answers with the tar of the tree. [RunStep] is the process
// that becomes one RUN step: alone in PID, mount, IPC and UTS namespaces, the
// tree as its root, with few capabilities, a seccomp filter and no route but
// the builder's.
//
// # What this does not keep
//
// Owners, setuid bits and extended attributes, which the importer takes away;
// sockets; the environment of the base image; a cache of steps.
package containerfile
