-- run_forget: entries are gone, and their runs with them, but for those that a worker has a lease on: they do go on, so
--             that an entry of the same name that is made anew does not run beside them.
-- KEYS: runs lapses
-- ARGV: names of entries
-- RETURNS: how many runs were forgotten that were outstanding
-- RULES: 2, 7
-- @flags allow-oom
local runs, lapses = KEYS[1], KEYS[2]
-- @include clock runs lapses

sweep()
local forgotten = 0
for at = 1, #ARGV do
  local kept, found = {}, read_runs(ARGV[at])
  for _, run in ipairs(found) do
    if run.state == 'running' then
      kept[#kept + 1] = run
    elseif is_outstanding(run) then
      forgotten = forgotten + 1
    end
  end
  if #found > 0 then
    write_runs(ARGV[at], kept)
  end
end
return forgotten
