# Announces what was approved. Until then it refuses its task, which comes again.
. /workspace/lib.sh
approved= held= announced= gone=
announce_it() {
  announce product announcement '{"text":"titles become file names, by a filter of a few lines"}'
  say "announced, at attempt $1"
  announced=yes
}
# While the adapter is away, a message goes to the gateway's outbox and is
# refused later: ask something that only the adapter answers first.
until msg channels > /dev/null 2>&1; do sleep 0.2; done
if msg send --to engineering --type hurry '{"when":"now"}' 2> /tmp/refused; then say "could hurry engineering"; exit 1; fi
say "may not write to engineering: $(head -n 1 /tmp/refused)"
while take; do
  case $from/$type in
    pm/task_assignment)
      if [ -n "$approved" ]; then
        announce_it "$attempt"
        done_with
      elif [ "$attempt" -lt 3 ]; then
        msg refuse --delay 1s --reason "nothing is approved yet" "$lease" > /dev/null
        say "refused attempt $attempt: nothing is approved yet"
      else
        held=$lease held_at=$attempt # refused too often it would be given up
      fi
      ;;
    qa_validation/approved)
      approved=yes
      done_with
      if [ -n "$held" ]; then
        announce_it "$held_at"
        lease=$held
        done_with
      fi
      ;;
    orchestrator/goodbye) gone=yes; done_with ;;
    *) done_with ;;
  esac
  [ -z "$gone" ] || [ -z "$announced" ] || exit 0
done
